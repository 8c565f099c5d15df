import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.HexFormat;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.MessageFormatter;
import org.apache.kafka.tools.consumer.GroupMetadataMessageFormatter;
import org.apache.kafka.tools.consumer.TransactionLogMessageFormatter;
import org.apache.kafka.tools.consumer.group.share.ShareGroupStateMessageFormatter;

/**
 * Prints coordinators' records as kafka-console-consumer does.
 *
 * Each line of standard input is a topic, a key in hex and a value in hex, "-" for none. Each line
 * of the answer is what Kafka's formatter of that topic prints; nothing, if it refuses.
 */
public final class Format {
    /** Kafka's own, which prints groups' metadata only, for all of the topic. */
    private static final class OfAllTypes extends GroupMetadataMessageFormatter {
        @Override
        protected boolean isRecordTypeAllowed(short type) {
            return true;
        }
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, MessageFormatter> formatters = Map.of(
            "__consumer_offsets", new OfAllTypes(),
            "__transaction_state", new TransactionLogMessageFormatter(),
            "__share_group_state", new ShareGroupStateMessageFormatter());
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        String line;
        while ((line = in.readLine()) != null) {
            String[] words = line.split(" ");
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            try {
                formatters.get(words[0]).writeTo(
                    new ConsumerRecord<>(words[0], 0, 0L, bytes(words[1]), bytes(words[2])),
                    new PrintStream(printed));
            } catch (RuntimeException refusal) {
                printed.reset();
            }
            out.println(printed.toString("UTF-8").strip());
        }
        out.flush();
    }

    private static byte[] bytes(String hex) {
        return hex.equals("-") ? null : HexFormat.of().parseHex(hex);
    }
}
