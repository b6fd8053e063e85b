// The program before the move, as docs/guide/migrate/redlock.md shows it. It is read by Node (--check), not run.

import Redlock from "redlock";

export async function before(a, b, c, work) {
  const redlock = new Redlock([a, b, c], { retryCount: 10 });
  const lock = await redlock.acquire(["orders:42"], 30000);
  try {
    await work();               // no renewal: 30 s must be enough
  } finally {
    await lock.release();
  }
}
