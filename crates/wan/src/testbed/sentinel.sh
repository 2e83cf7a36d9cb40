# Cleans up a testbed when its owner ends, for whatever reason: the first line of standard input names the state directory,
# and the input ends when the owner's end of the pipe is closed. The arguments are descriptors of the hosts' network
# namespaces, which this process keeps alive until no other process is in them.
trap '' HUP INT TERM
read -r state
while read -r _; do :; done

round=0
while [ $round -lt 1000 ]; do
    if [ $round -eq 0 ]; then signal=TERM; elif [ $round -lt 50 ]; then signal=0; else signal=KILL; fi
    busy=
    for process in /proc/[0-9]*; do
        for namespace; do
            if [ "$process/ns/net" -ef "/proc/self/fd/$namespace" ]; then
                kill -$signal "${process#/proc/}"
                busy=yes
            fi
        done
    done
    if [ -z "$busy" ]; then break; fi
    sleep 0.01
    round=$((round + 1))
done

# Renamed first, so that a new testbed of the same name can start at once.
gone="${state%/*}/.${state##*/}.gone.$$"
mv "$state" "$gone" && rm -rf "$gone"
