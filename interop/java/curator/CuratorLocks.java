import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.data.Stat;

/** Apache Curator's recipes. What a lease is elsewhere is the session here, one for the whole client. */
final class CuratorLocks implements Client {
    private final CuratorFramework curator;

    CuratorLocks(String hosts) throws Exception {
        String lease = System.getenv("PEER_LEASE");
        int session = lease == null ? 10_000 : Integer.parseInt(lease);
        curator = CuratorFrameworkFactory.newClient(hosts, session, 5_000, new ExponentialBackoffRetry(100, 10));
        curator.start();
        if (!curator.blockUntilConnected(10, TimeUnit.SECONDS)) {
            throw new IllegalStateException("not connected after 10 s");
        }
    }

    @Override
    public String name() {
        return "curator";
    }

    @Override
    public String version() {
        String jar = CuratorFramework.class.getProtectionDomain().getCodeSource().getLocation().getPath();
        return jar.replaceAll(".*curator-framework-(.*)\\.jar", "$1");
    }

    @Override
    public Lock lock(String kind, String name) throws Cannot {
        String[] words = kind.split(":");
        String path = "/" + name;
        return switch (words[0]) {
            case "mutex" -> new Owned(new Seen(curator, path));
            case "read" -> new Owned(new InterProcessReadWriteLock(curator, path).readLock());
            case "write" -> new Owned(new InterProcessReadWriteLock(curator, path).writeLock());
            case "semaphore" -> new Permit(path, Integer.parseInt(words[1]));
            case "election" -> new Leader(path);
            default -> throw new Cannot("curator has no " + kind + " lock");
        };
    }

    /** There is no call for it: users delete the first node. A semaphore has its nodes one level down. */
    @Override
    public boolean forceUnlock(String name) throws Exception {
        String folder = "/" + name;
        if (curator.checkExists().forPath(folder + "/leases") != null) {
            folder += "/leases";
        }
        String first = null;
        for (String node : curator.getChildren().forPath(folder)) {
            if (first == null || sequence(node).compareTo(sequence(first)) < 0) {
                first = node;
            }
        }
        if (first != null) {
            curator.delete().forPath(folder + "/" + first);
        }
        return first != null;
    }

    private static String sequence(String node) {
        return node.substring(Math.max(0, node.length() - 10));
    }

    /** A mutex that says where its node is. */
    private static final class Seen extends InterProcessMutex {
        Seen(CuratorFramework curator, String path) {
            super(curator, path);
        }

        String path() {
            return getLockPath();
        }
    }

    /** The number of the transaction that made a node, which grows from grant to grant. */
    private String madeBy(String path) throws Exception {
        Stat stat = path == null ? null : curator.checkExists().forPath(path);
        return stat == null ? null : Long.toString(stat.getCzxid());
    }

    private final class Owned implements Lock {
        private final InterProcessMutex inner;

        Owned(InterProcessMutex inner) {
            this.inner = inner;
        }

        private String path() {
            if (inner instanceof Seen seen) {
                return seen.path();
            } else if (inner instanceof InterProcessReadWriteLock.ReadLock read) {
                return read.getLockPath();
            }
            return ((InterProcessReadWriteLock.WriteLock) inner).getLockPath();
        }

        @Override
        public boolean acquire(long leaseMs, long waitMs, boolean renewed) throws Exception {
            return inner.acquire(waitMs, TimeUnit.MILLISECONDS);
        }

        @Override
        public String fence() {
            try {
                String made = madeBy(path());
                return made == null ? "-" : made;
            } catch (Exception error) {
                return "-";
            }
        }

        @Override
        public boolean again() throws Exception {
            return inner.acquire(0, TimeUnit.MILLISECONDS);
        }

        /** It never reports a loss: its users read the node. */
        @Override
        public String loss() throws Exception {
            return madeBy(path()) == null ? "its node is gone" : null;
        }

        @Override
        public void release() throws Exception {
            boolean gone = madeBy(path()) == null;
            inner.release();
            if (gone) {
                throw new Lost(new IllegalStateException("its node was gone"));
            }
        }
    }

    private final class Permit implements Lock {
        private final InterProcessSemaphoreV2 inner;
        private final String leases;
        private Lease lease;

        Permit(String path, int permits) {
            inner = new InterProcessSemaphoreV2(curator, path, permits);
            leases = path + "/leases/";
        }

        @Override
        public boolean acquire(long leaseMs, long waitMs, boolean renewed) throws Exception {
            lease = inner.acquire(waitMs, TimeUnit.MILLISECONDS);
            return lease != null;
        }

        @Override
        public boolean again() throws Cannot {
            throw new Cannot("a semaphore has no owner who could enter again");
        }

        @Override
        public String loss() throws Exception {
            return madeBy(leases + lease.getNodeName()) == null ? "its node is gone" : null;
        }

        @Override
        public void release() {
            inner.returnLease(lease);
        }
    }

    private final class Leader implements Lock {
        private final String path;
        private LeaderLatch latch;

        Leader(String path) {
            this.path = path;
        }

        @Override
        public boolean acquire(long leaseMs, long waitMs, boolean renewed) throws Exception {
            latch = new LeaderLatch(curator, path, "curator");
            latch.start();
            // It needs a moment to learn that it leads.
            if (latch.await(Math.max(waitMs, 1_000), TimeUnit.MILLISECONDS)) {
                return true;
            }
            latch.close();
            return false;
        }

        @Override
        public boolean again() throws Cannot {
            throw new Cannot("a leader cannot lead again");
        }

        /** It does not watch its node: its users do. */
        @Override
        public String loss() throws Exception {
            if (!latch.hasLeadership()) {
                return "it does not lead";
            }
            return madeBy(latch.getOurPath()) == null ? "its node is gone" : null;
        }

        @Override
        public void release() throws Exception {
            String path = latch.getOurPath();
            latch.close();
            // The node is deleted later, in the background.
            for (int poll = 0; poll < 200 && madeBy(path) != null; poll++) {
                Thread.sleep(5);
            }
        }
    }
}
