// Java's NIO: fifty sockets in one selector with half-close and refusals, and one that blocks. Arguments: echo, nobody.
import java.net.ConnectException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.util.Arrays;

public class NioClient {
    static final int COUNT = 50, LENGTH = 100003;

    // What one connection has still to send, and what came back.
    static class Talk {
        final ByteBuffer out, in = ByteBuffer.allocate(LENGTH + 1);
        final boolean refused;

        Talk(int i, boolean refused) {
            byte[] bytes = new byte[LENGTH];
            Arrays.fill(bytes, (byte) i);
            out = ByteBuffer.wrap(bytes);
            this.refused = refused;
        }
    }

    static InetSocketAddress address(String text) {
        int colon = text.lastIndexOf(':');
        return new InetSocketAddress(text.substring(0, colon), Integer.parseInt(text.substring(colon + 1)));
    }

    static void check(boolean what) {
        if (!what) throw new AssertionError();
    }

    static void begin(Selector selector, InetSocketAddress to, Talk talk) throws Exception {
        SocketChannel channel = SocketChannel.open();
        channel.configureBlocking(false);
        check(!channel.connect(to));
        channel.register(selector, SelectionKey.OP_CONNECT, talk);
    }

    // Goes on with one connection; says whether it is over.
    static boolean advance(SelectionKey key, InetSocketAddress echo) throws Exception {
        SocketChannel channel = (SocketChannel) key.channel();
        Talk talk = (Talk) key.attachment();
        if (key.isConnectable()) {
            try {
                check(channel.finishConnect() && !talk.refused);
            } catch (ConnectException error) {
                check(talk.refused && error.getMessage().equals("Connection refused"));
                channel.close();
                return true;
            }
            check(channel.getRemoteAddress().equals(echo));
            key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
            return false;
        }
        if (key.isWritable()) {
            channel.write(talk.out);
            if (!talk.out.hasRemaining()) {
                channel.shutdownOutput();
                key.interestOps(SelectionKey.OP_READ);
            }
        }
        if (key.isReadable() && channel.read(talk.in) < 0) {
            check(talk.in.position() == LENGTH);
            check(Arrays.equals(talk.out.array(), Arrays.copyOf(talk.in.array(), LENGTH)));
            channel.close();
            return true;
        }
        return false;
    }

    // Without a selector.
    static void block(InetSocketAddress echo, InetSocketAddress nobody) throws Exception {
        try (SocketChannel channel = SocketChannel.open(echo)) {
            channel.write(ByteBuffer.wrap("hello".getBytes()));
            channel.shutdownOutput();
            ByteBuffer back = ByteBuffer.allocate(6);
            while (channel.read(back) >= 0) {}
            check(new String(back.array(), 0, back.position()).equals("hello"));
        }
        try {
            SocketChannel.open(nobody);
            check(false);
        } catch (ConnectException error) {
            check(error.getMessage().equals("Connection refused"));
        }
    }

    public static void main(String[] arguments) throws Exception {
        InetSocketAddress echo = address(arguments[0]), nobody = address(arguments[1]);
        try (Selector selector = Selector.open()) {
            for (int i = 0; i < COUNT; i++) {
                begin(selector, echo, new Talk(i, false));
                begin(selector, nobody, new Talk(i, true));
            }
            for (int open = 2 * COUNT; open > 0;) {
                selector.select();
                for (SelectionKey key : selector.selectedKeys()) {
                    if (key.isValid() && advance(key, echo)) open--;
                }
                selector.selectedKeys().clear();
            }
        }
        block(echo, nobody);
        System.out.println("ok");
    }
}
