import java.io.IOException;
import java.lang.instrument.Instrumentation;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.server.telemetry.ClientTelemetry;
import org.apache.kafka.server.telemetry.ClientTelemetryReceiver;

/** A broker's plugin for clients' metrics (KIP-714): it writes what each push brings into a file. */
@SuppressWarnings("removal") // Kafka 4.2 has a newer interface, which 3.9 does not know
public class TelemetryFiles implements MetricsReporter, ClientTelemetry {
    private static final AtomicInteger NUMBER = new AtomicInteger();
    private static String directory;

    /** As a Java agent its jar comes to the class path of Kafka's launcher; the option is the directory. */
    public static void premain(String option, Instrumentation instrumentation) {
        directory = option;
    }

    @Override
    public ClientTelemetryReceiver clientReceiver() {
        return (context, payload) -> {
            ByteBuffer data = payload.data().duplicate();
            byte[] bytes = new byte[data.remaining()];
            data.get(bytes);
            String name = String.format("%06d %s %s %s", NUMBER.incrementAndGet(), payload.clientInstanceId(),
                payload.isTerminating(), context.clientId());
            try {
                Path hidden = Files.write(Path.of(directory, "." + name), bytes);
                Files.move(hidden, Path.of(directory, name));
            } catch (IOException error) {
                throw new RuntimeException(error);
            }
        };
    }

    @Override
    public void init(List<KafkaMetric> metrics) { }

    @Override
    public void metricChange(KafkaMetric metric) { }

    @Override
    public void metricRemoval(KafkaMetric metric) { }

    @Override
    public void close() { }

    @Override
    public void configure(Map<String, ?> configs) { }
}
