// node-redlock over ioredis, on one server or several.

import { readFileSync } from "node:fs";

import Redis from "ioredis";
import Redlock, { ExecutionError } from "redlock";

/** The library's own pause between two tries; a waiting time is turned into a number of tries by it. */
const RETRY_DELAY_MS = 200;

export class NodeRedlock {
  name = "node-redlock";
  kinds = new Set(["mutex"]);
  version = JSON.parse(readFileSync(new URL("node_modules/redlock/package.json", import.meta.url))).version;

  static async connect(urls) {
    const client = new NodeRedlock();
    client.servers = urls.split(",").map((url) => new Redis(url));
    await Promise.all(client.servers.map((server) => server.ping()));
    client.redlock = new Redlock(client.servers);
    return client;
  }

  lock(_kind, name) {
    return new NodeLock(this.redlock, name);
  }

  async forceUnlock(name) {
    // There is no call for it: users delete the key.
    const freed = await Promise.all(this.servers.map((server) => server.del(name)));
    return freed.some((count) => count > 0);
  }
}

class NodeLock {
  constructor(redlock, name) {
    this.redlock = redlock;
    this.name = name;
  }

  async acquire(leaseMs, waitMs, renewed) {
    // It renews half-way: by default half a second before the end, which a busy machine may sleep through.
    const settings = { retryCount: Math.ceil(waitMs / RETRY_DELAY_MS), automaticExtensionThreshold: leaseMs / 2 };
    try {
      if (renewed) await this.use(leaseMs, settings);
      else this.inner = await this.redlock.acquire([this.name], leaseMs, settings);
    } catch (error) {
      if (error instanceof ExecutionError) return false;
      throw error;
    }
    return true;
  }

  /** Its own renewal is there only inside `using`, so the hold is a function that ends on a signal. */
  use(leaseMs, settings) {
    return new Promise((granted, refused) => {
      const over = new Promise((end) => (this.end = end));
      this.using = this.redlock.using([this.name], leaseMs, settings, (signal) => {
        this.signal = signal;
        granted();
        return over;
      });
      this.using.catch(refused);
    });
  }

  async loss() {
    if (this.signal) return this.signal.aborted ? this.signal.error.message : undefined;
    return this.inner.expiration > Date.now() ? undefined : "its lease ran out";
  }

  async release() {
    if (this.signal) {
      this.end();
      await this.using;
    } else {
      await this.inner.release();
    }
  }
}
