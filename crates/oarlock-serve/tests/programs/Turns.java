import java.net.InetAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Takes turns under a lock of `oarlock serve`, with plain HTTP: url, file, rounds. Run it with `java Turns.java`. */
public class Turns {
    private static final HttpClient CLIENT = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();

    private static HttpResponse<String> post(String url, String body) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(url))
            .header("Content-Type", "application/json")
            .POST(HttpRequest.BodyPublishers.ofString(body))
            .build();
        return CLIENT.send(request, HttpResponse.BodyHandlers.ofString());
    }

    private static String field(String json, String name) {
        Matcher found = Pattern.compile("\"" + name + "\":\"?([^\",}]*)").matcher(json);
        if (!found.find()) {
            throw new IllegalStateException("no " + name + " in " + json);
        }
        return found.group(1);
    }

    public static void main(String[] arguments) throws Exception {
        String lock = arguments[0] + "/v1/locks/count";
        Path path = Path.of(arguments[1]);
        int rounds = Integer.parseInt(arguments[2]);
        // The wait-for graph needs both.
        String host = InetAddress.getLocalHost().getHostName().replaceAll("[\"\\\\]", "");
        String label = "{\"host\":\"" + host + "\",\"pid\":" + ProcessHandle.current().pid() + ",\"reason\":\"java\"}";
        while (rounds > 0) {
            long sent = System.nanoTime();
            HttpResponse<String> granted =
                post(lock, "{\"wait_ms\":60000,\"ttl_ms\":10000,\"label\":" + label + "}");
            if (granted.statusCode() == 409) {
                continue;
            } else if (granted.statusCode() != 201) {
                throw new IllegalStateException(granted.body());
            }
            long believed = sent + Long.parseLong(field(granted.body(), "believe_ms")) * 1_000_000;
            int before = Integer.parseInt(Files.readString(path).trim());
            Thread.sleep(2);
            if (System.nanoTime() - believed < 0) {
                Files.writeString(path, Integer.toString(before + 1));
                rounds--;
            }
            HttpResponse<String> released =
                post(lock + "/release", "{\"lease\":\"" + field(granted.body(), "lease") + "\"}");
            if (released.statusCode() != 200 && released.statusCode() != 410) {
                throw new IllegalStateException(released.body());
            }
        }
    }
}
