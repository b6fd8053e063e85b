import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/** The loop that all peers in Java share: see ../../README.md for its protocol. */
final class Peer {
    private Peer() {}

    static void run(Client client) throws Exception {
        say("ready " + client.name() + " " + client.version());
        // One thread for each handle: owners of locks are threads.
        Map<String, ExecutorService> threads = new HashMap<>();
        Map<String, Worker> workers = new HashMap<>();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            String verb = words[0];
            String handle = words[1];
            String[] args = Arrays.copyOfRange(words, 2, words.length);
            Worker worker = workers.computeIfAbsent(handle, name -> new Worker(client, name));
            threads.computeIfAbsent(handle, name -> Executors.newSingleThreadExecutor())
                    .execute(() -> say(worker.obey(verb, args)));
        }
        // Nothing is released: the test wants to see the death of this process.
        Runtime.getRuntime().halt(0);
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    /** An error in one line. */
    static String plain(Throwable error) {
        String text = (error.getClass().getSimpleName() + ": " + error.getMessage()).replace('\n', ' ');
        return text.substring(0, Math.min(text.length(), 120));
    }
}
