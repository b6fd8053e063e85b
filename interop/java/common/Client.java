/** One lock library. */
interface Client {
    String name();

    String version();

    /** A lock that is not held yet. */
    Lock lock(String kind, String name) throws Cannot;

    /** Takes the lock from its holder; false if it was free. */
    boolean forceUnlock(String name) throws Exception;

    /** One lock of one owner. All calls come from the thread of its handle. */
    interface Lock {
        /** Waits for {@code waitMs} at most, once only if that is 0. With {@code renewed} it is kept alive until released. */
        boolean acquire(long leaseMs, long waitMs, boolean renewed) throws Exception;

        /** A number that grows with every grant, or "-". */
        default String fence() {
            return "-";
        }

        boolean again() throws Exception;

        /** Why it is no longer held; null while it is. */
        String loss() throws Exception;

        /** Throws {@link Lost} if it was not ours any more. */
        void release() throws Exception;
    }

    /** This client has no such thing. */
    final class Cannot extends Exception {
        Cannot(String why) {
            super(why);
        }
    }

    /** The lock was not ours any more. */
    final class Lost extends Exception {
        Lost(Throwable why) {
            super(Peer.plain(why));
        }
    }
}
