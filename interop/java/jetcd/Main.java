/** usage: java Main jetcd URL */
final class Main {
    private Main() {}

    public static void main(String[] args) throws Exception {
        Peer.run(new JetcdLocks(args[1]));
    }
}
