// A peer in Node: see ../README.md for its protocol.
//
// usage: node peer.mjs <client> <url>

import { readFile, writeFile } from "node:fs/promises";
import { createInterface } from "node:readline";

import { NodeRedlock } from "./redlock.mjs";

const LEASE_MS = 10_000;
const WAIT_MS = 60_000;
const POLL_MS = 10;

const CLIENTS = { "node-redlock": NodeRedlock };

const now = () => process.hrtime.bigint();
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const plain = (error) => `${error.name}: ${error.message}`.replaceAll("\n", " ").slice(0, 120);

class Cannot extends Error {}

const [, , name, url] = process.argv;
const client = await CLIENTS[name].connect(url);

function newLock(kind, name) {
  if (!client.kinds.has(kind)) throw new Cannot(`${client.name} has no ${kind} lock`);
  return client.lock(kind, name);
}

/** What each command does with its handle's hold, kept in `holds`. */
const holds = new Map();

const verbs = {
  async lock(handle, kind, name, lease, wait) {
    const lock = newLock(kind, name);
    const renewed = lease.startsWith("renew:");
    const ms = Number(lease.replace("renew:", ""));
    if (!(await lock.acquire(ms, Number(wait), renewed))) return `busy ${handle}`;
    holds.set(handle, lock);
    return `held ${handle} ${now()} -`;
  },

  async again(_handle) {
    throw new Cannot(`${client.name} is not re-entrant`);
  },

  async unlock(handle) {
    const before = now();
    try {
      await holds.get(handle).release();
    } catch (error) {
      return `lost ${handle} ${now()} ${plain(error)}`;
    }
    return `freed ${handle} ${before}`;
  },

  async held(handle) {
    return (await holds.get(handle).loss()) ? `no ${handle}` : `yes ${handle}`;
  },

  async loss(handle, wait) {
    const end = now() + BigInt(wait) * 1_000_000n;
    while (now() < end) {
      const why = await holds.get(handle).loss();
      if (why) return `lost ${handle} ${now()} ${why}`;
      await pause(POLL_MS);
    }
    return `kept ${handle}`;
  },

  async break(handle, name) {
    const before = now();
    return (await client.forceUnlock(name)) ? `freed ${handle} ${before}` : `free ${handle}`;
  },

  async count(handle, kind, name, file, rounds) {
    for (let round = 0; round < Number(rounds); round += 1) {
      const lock = newLock(kind, name);
      if (!(await lock.acquire(LEASE_MS, WAIT_MS, false))) return `error ${handle} nothing for ${WAIT_MS} ms`;
      await writeFile(file, String(Number(await readFile(file, "utf8")) + 1));
      await lock.release();
    }
    return `counted ${handle} ${rounds}`;
  },

  async load(handle, kind, name, contenders, seconds, file) {
    const end = now() + BigInt(Math.round(Number(seconds) * 1e9));
    const grants = [];
    const contend = async (number) => {
      const lock = newLock(kind, name);
      for (let asked = now(); asked < end; asked = now()) {
        if (!(await lock.acquire(LEASE_MS, WAIT_MS, false))) throw new Error(`nothing for ${WAIT_MS} ms`);
        const granted = now();
        const releasing = now();
        await lock.release();
        grants.push(`${number} ${asked} ${granted} ${releasing} ${now()}\n`);
      }
    };
    await Promise.all(Array.from({ length: Number(contenders) }, (_, number) => contend(number)));
    await writeFile(file, grants.join(""));
    return `loaded ${handle} ${grants.length}`;
  },

  async pairs(handle, kind, name, tasks, seconds) {
    const end = now() + BigInt(Math.round(Number(seconds) * 1e9));
    const took = [];
    const pair = async (task) => {
      const lock = newLock(kind, `${name}-${task}`);
      for (let start = now(); start < end; start = now()) {
        if (!(await lock.acquire(LEASE_MS, 0, false))) throw new Error("the lock is held by another");
        await lock.release();
        took.push(Number(now() - start));
      }
    };
    await Promise.all(Array.from({ length: Number(tasks) }, (_, task) => pair(task)));
    took.sort((a, b) => a - b);
    const at = (share) => took[Math.floor(took.length * share)];
    return `pairs ${handle} ${took.length} ${at(0.5)} ${at(0.99)}`;
  },
};

/** The commands of one handle run one after another. */
const queues = new Map();

async function obey(verb, handle, args) {
  try {
    return await verbs[verb](handle, ...args);
  } catch (error) {
    return error instanceof Cannot ? `cannot ${handle} ${error.message}` : `error ${handle} ${plain(error)}`;
  }
}

console.log(`ready ${name} ${client.version}`);
for await (const line of createInterface({ input: process.stdin })) {
  const [verb, handle, ...args] = line.split(" ");
  const before = queues.get(handle) ?? Promise.resolve();
  queues.set(handle, before.then(async () => console.log(await obey(verb, handle, args))));
}
process.exit(0);
