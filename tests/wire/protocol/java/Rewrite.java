import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.nio.ByteBuffer;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

/**
 * Reads messages with Kafka's generated classes and writes them again.
 *
 * Standard input is a row of batches: the class (UTF, without package), the version (short), how
 * many messages (int), and each with its size (int) in front. For each batch the answer is a short
 * text (UTF): "" and each message with its size in front, or why the class cannot do that version.
 * A size of -1 is followed by the exception (UTF); trailing bytes are an exception too.
 */
public final class Rewrite {
    public static void main(String[] arguments) throws Exception {
        DataInputStream in = new DataInputStream(new BufferedInputStream(System.in, 1 << 16));
        DataOutputStream out = new DataOutputStream(new BufferedOutputStream(System.out, 1 << 16));
        while (true) {
            String name;
            try {
                name = in.readUTF();
            } catch (EOFException end) {
                return;
            }
            short version = in.readShort();
            byte[][] messages = new byte[in.readInt()][];
            for (int i = 0; i < messages.length; i++) {
                messages[i] = new byte[in.readInt()];
                in.readFully(messages[i]);
            }
            answer(name, version, messages, out);
            out.flush();
        }
    }

    private static void answer(String name, short version, byte[][] messages, DataOutputStream out)
            throws Exception {
        Message empty;
        try {
            empty = make(name);
        } catch (ClassNotFoundException absent) {
            out.writeUTF("no such class");
            return;
        }
        if (version < empty.lowestSupportedVersion() || version > empty.highestSupportedVersion()) {
            out.writeUTF("no such version");
            return;
        }
        out.writeUTF("");
        for (byte[] message : messages) {
            try {
                byte[] written = rewrite(make(name), version, message);
                out.writeInt(written.length);
                out.write(written);
            } catch (RuntimeException refusal) {
                out.writeInt(-1);
                out.writeUTF(refusal.toString());
            }
        }
    }

    private static Message make(String name) throws Exception {
        Class<?> type = Class.forName("org.apache.kafka.common.message." + name);
        return (Message) type.getConstructor().newInstance();
    }

    private static byte[] rewrite(Message message, short version, byte[] bytes) {
        ByteBufferAccessor in = new ByteBufferAccessor(ByteBuffer.wrap(bytes));
        message.read(in, version);
        if (in.remaining() > 0) {
            throw new IllegalStateException(in.remaining() + " bytes are left");
        }
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer written = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(written), cache, version);
        return written.array();
    }
}
