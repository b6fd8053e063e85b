/**
 * The program before the move, as docs/guide/migrate/shedlock.md shows it. It is compiled, not run, and without ShedLock
 * and Spring: their two annotations are declared here with the members that the program uses.
 */
final class ScheduledBefore {
    @interface Scheduled {
        String cron();
    }

    @interface SchedulerLock {
        String name();

        String lockAtMostFor();

        String lockAtLeastFor();
    }

    @Scheduled(cron = "0 0 2 * * *")
    @SchedulerLock(name = "report", lockAtMostFor = "PT30M", lockAtLeastFor = "PT5M")
    public void report() {
        work();
    }

    private static void work() {}
}
