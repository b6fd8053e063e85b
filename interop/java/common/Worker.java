import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Obeys the commands of one handle. */
final class Worker {
    private static final long LEASE_MS = 10_000;
    private static final long WAIT_MS = 60_000;
    private static final long POLL_MS = 10;

    private final Client client;
    private final String handle;
    private Client.Lock hold;

    Worker(Client client, String handle) {
        this.client = client;
        this.handle = handle;
    }

    String obey(String verb, String[] args) {
        try {
            return switch (verb) {
                case "lock" -> lock(args[0], args[1], args[2], Long.parseLong(args[3]));
                case "again" -> hold.again() ? held() : "busy " + handle;
                case "unlock" -> unlock();
                case "held" -> (hold.loss() == null ? "yes " : "no ") + handle;
                case "loss" -> loss(Long.parseLong(args[0]));
                case "break" -> breakHold(args[0]);
                case "count" -> count(args[0], args[1], Path.of(args[2]), Integer.parseInt(args[3]));
                case "load" -> load(args[0], args[1], Integer.parseInt(args[2]), nanos(args[3]), Path.of(args[4]));
                case "pairs" -> pairs(args[0], args[1], Integer.parseInt(args[2]), nanos(args[3]));
                default -> throw new Client.Cannot("there is no command " + verb);
            };
        } catch (Client.Cannot why) {
            return "cannot " + handle + " " + why.getMessage();
        } catch (Exception error) {
            return "error " + handle + " " + Peer.plain(error);
        }
    }

    private String held() {
        return "held " + handle + " " + System.nanoTime() + " " + hold.fence();
    }

    private String lock(String kind, String name, String lease, long waitMs) throws Exception {
        Client.Lock lock = client.lock(kind, name);
        boolean renewed = lease.startsWith("renew:");
        if (!lock.acquire(Long.parseLong(lease.replace("renew:", "")), waitMs, renewed)) {
            return "busy " + handle;
        }
        hold = lock;
        return held();
    }

    private String unlock() throws Exception {
        long before = System.nanoTime();
        try {
            hold.release();
        } catch (Client.Lost why) {
            return "lost " + handle + " " + System.nanoTime() + " " + why.getMessage();
        }
        return "freed " + handle + " " + before;
    }

    private String loss(long waitMs) throws Exception {
        long end = System.nanoTime() + waitMs * 1_000_000;
        while (System.nanoTime() < end) {
            String why = hold.loss();
            if (why != null) {
                return "lost " + handle + " " + System.nanoTime() + " " + why;
            }
            Thread.sleep(POLL_MS);
        }
        return "kept " + handle;
    }

    private String breakHold(String name) throws Exception {
        long before = System.nanoTime();
        return client.forceUnlock(name) ? "freed " + handle + " " + before : "free " + handle;
    }

    private String count(String kind, String name, Path file, int rounds) throws Exception {
        for (int round = 0; round < rounds; round++) {
            Client.Lock lock = client.lock(kind, name);
            acquire(lock, WAIT_MS);
            Files.writeString(file, Long.toString(Long.parseLong(Files.readString(file).trim()) + 1));
            lock.release();
        }
        return "counted " + handle + " " + rounds;
    }

    private String load(String kind, String name, int contenders, long span, Path file) throws Exception {
        long end = System.nanoTime() + span;
        List<List<String>> grants = together(contenders, contender -> {
            Client.Lock lock = client.lock(kind, name);
            List<String> mine = new ArrayList<>();
            for (long asked = System.nanoTime(); asked < end; asked = System.nanoTime()) {
                acquire(lock, WAIT_MS);
                long granted = System.nanoTime();
                long releasing = System.nanoTime();
                lock.release();
                mine.add(contender + " " + asked + " " + granted + " " + releasing + " " + System.nanoTime() + "\n");
            }
            return mine;
        });
        StringBuilder text = new StringBuilder();
        int count = 0;
        for (List<String> mine : grants) {
            mine.forEach(text::append);
            count += mine.size();
        }
        Files.writeString(file, text);
        return "loaded " + handle + " " + count;
    }

    private String pairs(String kind, String name, int tasks, long span) throws Exception {
        long end = System.nanoTime() + span;
        List<List<Long>> took = together(tasks, task -> {
            Client.Lock lock = client.lock(kind, name + "-" + task);
            List<Long> mine = new ArrayList<>();
            for (long start = System.nanoTime(); start < end; start = System.nanoTime()) {
                acquire(lock, 0);
                lock.release();
                mine.add(System.nanoTime() - start);
            }
            return mine;
        });
        long[] all = took.stream().flatMap(List::stream).mapToLong(Long::longValue).sorted().toArray();
        return "pairs " + handle + " " + all.length + " " + all[all.length / 2] + " " + all[all.length * 99 / 100];
    }

    private void acquire(Client.Lock lock, long waitMs) throws Exception {
        if (!lock.acquire(LEASE_MS, waitMs, false)) {
            throw new IllegalStateException("the lock is held by another, for " + waitMs + " ms");
        }
    }

    private interface Work<T> {
        T run(int number) throws Exception;
    }

    /** Runs it many times at once, each on a thread of its own; throws what any of them throws. */
    private static <T> List<T> together(int many, Work<T> work) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(many);
        try {
            List<Callable<T>> calls = new ArrayList<>();
            for (int number = 0; number < many; number++) {
                int mine = number;
                calls.add(() -> work.run(mine));
            }
            List<T> answers = new ArrayList<>();
            for (Future<T> answer : threads.invokeAll(calls)) {
                answers.add(answer.get());
            }
            return answers;
        } finally {
            threads.shutdown();
        }
    }

    private static long nanos(String seconds) {
        return (long) (Double.parseDouble(seconds) * 1e9);
    }
}
