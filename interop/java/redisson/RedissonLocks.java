import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Redisson on one server, or in a cluster. */
final class RedissonLocks implements Client {
    private static final String CLUSTER = "redis+cluster://";

    private final RedissonClient redisson;

    RedissonLocks(String url) {
        Config config = new Config();
        if (url.startsWith(CLUSTER)) {
            for (String host : url.substring(CLUSTER.length()).split(",")) {
                config.useClusterServers().addNodeAddress("redis://" + host);
            }
        } else {
            config.useSingleServer().setAddress(url);
        }
        String lease = System.getenv("PEER_LEASE");
        if (lease != null) {
            config.setLockWatchdogTimeout(Long.parseLong(lease));
        }
        redisson = Redisson.create(config);
    }

    @Override
    public String name() {
        return "redisson";
    }

    @Override
    public String version() {
        return Redisson.class.getPackage().getImplementationVersion();
    }

    @Override
    public Lock lock(String kind, String name) throws Cannot {
        String[] words = kind.split(":");
        return switch (words[0]) {
            case "mutex" -> new Owned(redisson.getLock(name));
            case "fair" -> new Owned(redisson.getFairLock(name));
            case "spin" -> new Owned(redisson.getSpinLock(name));
            case "read" -> new Owned(redisson.getReadWriteLock(name).readLock());
            case "write" -> new Owned(redisson.getReadWriteLock(name).writeLock());
            case "fenced" -> new Fenced(redisson.getFencedLock(name));
            case "semaphore" -> new Permit(redisson.getSemaphore(name), Integer.parseInt(words[1]));
            case "permit" -> new Leased(redisson.getPermitExpirableSemaphore(name), Integer.parseInt(words[1]));
            default -> throw new Cannot("redisson has no " + kind + " lock");
        };
    }

    @Override
    public boolean forceUnlock(String name) {
        return redisson.getLock(name).forceUnlock();
    }

    /** What a thread owns: all kinds of RLock. */
    private static class Owned implements Lock {
        final RLock inner;
        long leaseMs;

        Owned(RLock inner) {
            this.inner = inner;
        }

        @Override
        public boolean acquire(long leaseMs, long waitMs, boolean renewed) throws Exception {
            // Its watchdog keeps what has no lease of its own; how long that lives is a setting of the client.
            this.leaseMs = renewed ? -1 : leaseMs;
            return again(waitMs);
        }

        boolean again(long waitMs) throws Exception {
            return inner.tryLock(waitMs, leaseMs, TimeUnit.MILLISECONDS);
        }

        @Override
        public boolean again() throws Exception {
            return again(0);
        }

        @Override
        public String loss() {
            return inner.isHeldByCurrentThread() ? null : "it is not held by this thread";
        }

        @Override
        public void release() throws Lost {
            try {
                inner.unlock();
            } catch (IllegalMonitorStateException error) {
                throw new Lost(error);
            }
        }
    }

    private static final class Fenced extends Owned {
        private final RFencedLock fenced;
        private Long token;

        Fenced(RFencedLock fenced) {
            super(fenced);
            this.fenced = fenced;
        }

        @Override
        boolean again(long waitMs) {
            token = fenced.tryLockAndGetToken(waitMs, leaseMs, TimeUnit.MILLISECONDS);
            return token != null;
        }

        @Override
        public String fence() {
            return token.toString();
        }

        /** A later token means that another client was granted it since. */
        @Override
        public String loss() {
            Long last = fenced.getToken();
            return token.equals(last) ? super.loss() : "its token is " + token + ", and " + last + " was given since";
        }
    }

    /** A permit without a known holder: no lease, no loss. */
    private static final class Permit implements Lock {
        private final RSemaphore inner;

        Permit(RSemaphore inner, int permits) {
            this.inner = inner;
            inner.trySetPermits(permits);
        }

        @Override
        public boolean acquire(long leaseMs, long waitMs, boolean renewed) throws Exception {
            return inner.tryAcquire(1, waitMs, TimeUnit.MILLISECONDS);
        }

        @Override
        public boolean again() throws Cannot {
            throw new Cannot("a semaphore has no owner who could enter again");
        }

        @Override
        public String loss() {
            return null;
        }

        @Override
        public void release() {
            inner.release();
        }
    }

    private static final class Leased implements Lock {
        private final RPermitExpirableSemaphore inner;
        private String id;

        Leased(RPermitExpirableSemaphore inner, int permits) {
            this.inner = inner;
            inner.trySetPermits(permits);
        }

        @Override
        public boolean acquire(long leaseMs, long waitMs, boolean renewed) throws Exception {
            id = inner.tryAcquire(waitMs, leaseMs, TimeUnit.MILLISECONDS);
            return id != null;
        }

        @Override
        public boolean again() throws Cannot {
            throw new Cannot("a semaphore has no owner who could enter again");
        }

        @Override
        public String loss() {
            return null;
        }

        @Override
        public void release() throws Lost {
            try {
                inner.release(id);
            } catch (IllegalArgumentException error) {
                throw new Lost(error);
            }
        }
    }
}
