# Creates the files of Grid security in the working directory: an authority, a certificate for servers on the hosts of
# experiments, one for the user, and the user's mapping on the servers.
name=/O=Grid/OU=Test
openssl req -x509 -newkey rsa:2048 -nodes -sha256 -days 2 -subj "$name/CN=Authority" -keyout ca.key -out ca.pem \
  -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign
hash=$(openssl x509 -in ca.pem -noout -subject_hash)
cp ca.pem "certs/$hash.0"
cat > "certs/$hash.signing_policy" <<END
access_id_CA  X509   '$name/CN=Authority'
pos_rights    globus CA:sign
cond_subjects globus '"$name/*"'
END
issue() { # FILE COMMON-NAME EXTENSIONS
  openssl req -newkey rsa:2048 -nodes -sha256 -subj "$name/CN=$2" -keyout "$1.key" -out "$1.csr"
  printf 'basicConstraints=CA:FALSE\nkeyUsage=digitalSignature,keyEncipherment\n%s\n' "$3" > "$1.ext"
  openssl x509 -req -in "$1.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -sha256 -extfile "$1.ext" -out "$1.pem"
}
issue server dst 'subjectAltName=DNS:dst,DNS:src,DNS:dst1,DNS:dst2,DNS:dst3'
issue user 'Test User' ''
echo "\"$name/CN=Test User\" root" > grid-mapfile
