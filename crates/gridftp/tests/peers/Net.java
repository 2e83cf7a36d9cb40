// What commons-net does with a server: java -cp commons-net.jar Net.java PORT FILE puts the file, lists it, gets it back, gets a part of
// it, renames and removes it.
import java.io.*;
import java.nio.file.*;
import java.util.Arrays;
import org.apache.commons.net.ftp.*;

public class Net {
    static void must(boolean done, FTPClient c, String what) {
        if (!done) throw new IllegalStateException(what + ": " + c.getReplyString());
    }

    public static void main(String[] arguments) throws Exception {
        byte[] content = Files.readAllBytes(Path.of(arguments[1]));
        FTPClient c = new FTPClient();
        c.connect("127.0.0.1", Integer.parseInt(arguments[0]));
        must(c.login("anonymous", "me@"), c, "login");
        c.enterLocalPassiveMode();
        must(c.setFileType(FTP.BINARY_FILE_TYPE), c, "type");
        must(c.makeDirectory("java"), c, "mkdir");
        must(c.storeFile("java/a b", new ByteArrayInputStream(content)), c, "store");
        FTPFile[] listed = c.listFiles("java");
        FTPFile[] facts = c.mlistDir("java");
        must(listed.length == 1 && listed[0].getName().equals("a b") && listed[0].getSize() == content.length, c, "list");
        must(Arrays.stream(facts).anyMatch(f -> f.getName().equals("a b") && f.getSize() == content.length), c, "facts");
        for (int from : new int[] {0, 1000000}) {
            ByteArrayOutputStream got = new ByteArrayOutputStream();
            c.setRestartOffset(from);
            must(c.retrieveFile("java/a b", got), c, "retrieve");
            must(Arrays.equals(got.toByteArray(), Arrays.copyOfRange(content, from, content.length)), c, "bytes");
        }
        must(c.rename("java/a b", "java/b"), c, "rename");
        must(c.deleteFile("java/b") && c.removeDirectory("java"), c, "remove");
        must(c.logout(), c, "logout");
    }
}
