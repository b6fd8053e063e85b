/**
 * Locks over HTTP, with `oarlock serve`. One file, no dependencies. Deno, Bun and Node from 22.6 on
 * (`node --experimental-strip-types`) run it as it is; compile it with `tsc` for Node 20.
 *
 *     import { Client } from "./oarlock.ts";
 *
 *     const client = new Client("http://127.0.0.1:7070");
 *     const lock = await client.lock("deploy/prod", { wait: 20, reason: "release 2.3" });
 *     try {
 *       while (workIsLeft()) {
 *         lock.check();                       // throws Lost once the lock may be held by another
 *         await write(row, lock.fence);       // the protected side refuses a smaller fence than it has seen
 *       }
 *     } finally {
 *       await lock.release();
 *     }
 *
 * A timer renews the lock. Belief counts from before each request was sent, so that it ends before the store can grant
 * the lock to another client. What `lock.check()` cannot stop, the fence must: a blocked event loop checks nothing.
 */

export interface ClientOptions {
  /** For a server with tokens. */
  token?: string;
}

export interface LockOptions {
  /** How long to wait, in seconds; 0 by default. */
  wait?: number;
  /** The lease: how long the lock lives without a renewal, in seconds; 30 by default. */
  ttl?: number;
  kind?: "mutex" | "read" | "write" | "semaphore";
  /** For a semaphore: how many there are, and how many to take. */
  permits?: number;
  take?: number;
  /** Why it is held, for others to see. */
  reason?: string;
  /** Who asks, for others to see. It has the host and the pid of this process, unless it says others. */
  label?: Record<string, unknown>;
  /** Follow the stream of the lease: a break and a loss are told at once. It takes a connection for each lock. */
  watch?: boolean;
}

interface Renewal {
  believe_ms: number;
  renew_in_ms: number;
  ending?: Ending;
}

interface Granted extends Renewal {
  lease: string;
  fence: string;
}

/** Who wants the lock, and why. */
export interface Ending {
  by: string;
  why: string;
}

/** The server refused a request; `code` is one word for programs. */
export class OarlockError extends Error {
  readonly code: string;

  constructor(code: string, detail: string) {
    super(detail);
    this.name = new.target.name;
    this.code = code;
  }
}

/** Another client holds the lock. */
export class Busy extends OarlockError {}

/** The lock is not held any more: stop changing what it protects. */
export class Lost extends OarlockError {}

/** How long one request may take; a long poll ends before. */
const REQUEST_MS = 90_000;

/**
 * A lock request whose answer is missing may have taken the lock: it is repeated for so long after its wait. A
 * repetition that is under way then has as long again.
 */
const GRACE_MS = 5000;

/** A longer timer would fire at once. */
const MAX_TIMER_MS = 2 ** 31 - 1;

/** A stream on which nothing comes for so long is dead: the server sends something every ten seconds. */
const SILENCE_MS = 30_000;

/** Aborts a request after so long. Node takes whole milliseconds alone. */
const within = (ms: number) => AbortSignal.timeout(Math.ceil(Math.min(ms, REQUEST_MS)));

const sleep = (ms: number) => new Promise((done) => setTimeout(done, ms));

/** A server, and the token for it, if it needs one. */
export class Client {
  readonly #url: string;
  readonly #token: string | undefined;

  constructor(url: string, options: ClientOptions = {}) {
    this.#url = url.replace(/\/+$/, "");
    this.#token = options.token;
  }

  /**
   * Takes a lock, or waits for it. Throws `Busy`; what `fetch` throws if no server can be reached. It ends with the
   * wait if a server refuses the connection, and ten seconds later at most if answers are missing.
   */
  async lock(name: string, options: LockOptions = {}): Promise<Lock> {
    const { wait = 0, ttl = 30, kind = "mutex", permits, take, reason, label = {}, watch = false } = options;
    const body = {
      kind,
      permits,
      take,
      ttl_ms: Math.round(ttl * 1000),
      label: { ...identity(), ...label, reason: reason ?? label.reason },
    };
    // The same key again joins the same request: no answer that is lost can cost a lock or a place in the queue.
    let headers = { "Idempotency-Key": crypto.randomUUID() };
    const end = performance.now() + wait * 1000;
    const giveUp = end + GRACE_MS;
    // A request with this key may have reached a server, and may have been granted.
    let mayBeHeld = false;
    // A URL that is none fails at once, and not after all tries.
    new URL(this.#url);
    for (;;) {
      const sent = clocks();
      // A server that does not know the key, after a restart, waits for what is left.
      const wait_ms = Math.max(Math.round(end - sent.steady), 0);
      try {
        const patience = Math.max(giveUp + GRACE_MS - sent.steady, 1000);
        const signal = within(patience);
        const answer = await this.send("POST", path(name), { ...body, wait_ms }, headers, signal);
        if (answer.status === 201) {
          return new Lock(this, name, (await answer.json()) as Granted, sent, watch);
        }
        mayBeHeld = true;
        await answer.body?.cancel();
      } catch (error) {
        const code = error instanceof OarlockError ? error.code : "no-answer";
        const left = end - performance.now();
        if (["closing", "unreachable"].includes(code) && left > 0) {
          // The server ends, or cannot reach the store: it has given up the request. Begin anew, there or at the next
          // server, for what is left of the wait.
          await sleep(Math.min(1000, left));
          headers = { "Idempotency-Key": crypto.randomUUID() };
          mayBeHeld = false;
          continue;
        }
        // What was not sent has taken nothing: there is no answer to ask for.
        mayBeHeld ||= code === "no-answer" && !wasNotSent(error);
        const until = code === "no-answer" && !mayBeHeld ? end : giveUp;
        if (!["no-answer", "too-fast", "too-many-requests"].includes(code) || performance.now() >= until) {
          throw error;
        }
        await sleep(code === "no-answer" ? 200 : 1000);
      }
    }
  }

  /** Everything about a lock: holders, queue, labels. */
  async show(name: string): Promise<unknown> {
    return (await this.send("GET", path(name))).json();
  }

  /** The locks in use. */
  async list(pattern = "*"): Promise<unknown[]> {
    const answer = await this.send("GET", `/v1/locks?pattern=${encodeURIComponent(pattern)}`);
    return ((await answer.json()) as { locks: unknown[] }).locks;
  }

  /** Sends one request. A redirect is an error: the token is for this server alone. */
  async send(
    method: string,
    at: string,
    body?: unknown,
    headers: Record<string, string> = {},
    signal?: AbortSignal,
  ): Promise<Response> {
    const all = this.#token === undefined ? headers : { ...headers, Authorization: `Bearer ${this.#token}` };
    const url = new URL(this.#url + at);
    if (url.pathname !== new URL(this.#url).pathname.replace(/\/$/, "") + at.split("?")[0]) {
      throw new OarlockError("invalid-name", "a URL cannot carry this name: \".\" and \"..\" have a meaning of their own");
    }
    const content = body === undefined ? undefined : JSON.stringify(body);
    const answer = await fetch(url, { method, headers: all, body: content, redirect: "error", signal });
    if (answer.ok) {
      return answer;
    }
    const problem = (await answer.json().catch(() => ({}))) as { code?: string; detail?: string };
    // A proxy answers for a server that does not.
    const unknown = [502, 503, 504].includes(answer.status) ? "no-answer" : "unexpected";
    const { code = unknown, detail = `the server answered with status ${answer.status}` } = problem;
    const Kind = code === "busy" ? Busy : code === "lost" ? Lost : OarlockError;
    throw new Kind(code, detail);
  }
}

/** Host and pid of this process, as far as the runtime tells them: the wait-for graph needs both. */
function identity(): { host?: string; pid?: number } {
  const { process, Deno } = globalThis as {
    process?: { pid?: number; getBuiltinModule?: (name: string) => { hostname(): string } | undefined };
    Deno?: { pid: number; hostname(): string };
  };
  try {
    const host = process?.getBuiltinModule?.("node:os")?.hostname() ?? Deno?.hostname();
    return { host, pid: process?.pid ?? Deno?.pid };
  } catch {
    // Deno asks for the permission "sys".
    return {};
  }
}

/** Whether a request has certainly not reached a server. Each runtime says in its own way that it could not connect. */
function wasNotSent(error: unknown): boolean {
  if (error instanceof OarlockError) {
    return false;
  }
  const { code, cause, message } = error as { code?: string; cause?: { code?: string }; message?: string };
  const codes = ["ECONNREFUSED", "ConnectionRefused", "ENOTFOUND", "EAI_AGAIN"];
  return codes.includes(code ?? cause?.code ?? "") || /connection refused/i.test(message ?? "");
}

function path(name: string): string {
  return "/v1/locks/" + encodeURIComponent(name);
}

/** Two clocks: one is never set, the other goes on while the machine sleeps, as the lease in the store does. */
interface Clocks {
  steady: number;
  wall: number;
}

function clocks(): Clocks {
  return { steady: performance.now(), wall: Date.now() };
}

/** A held lock. Call `release` in a `finally`. */
export class Lock {
  readonly name: string;
  /** Larger than that of every earlier holder. Send it with every write to what the lock protects. */
  readonly fence: bigint;
  /** By whom and why, once an operator wants the lock: finish, and release it. It is not extended any more. */
  ending: Ending | undefined;
  readonly #client: Client;
  readonly #lease: string;
  readonly #over = new AbortController();
  readonly #stream = new AbortController();
  #until: Clocks = { steady: 0, wall: 0 };
  #why: string | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #end: ReturnType<typeof setTimeout> | undefined;

  constructor(client: Client, name: string, granted: Granted, sent: Clocks, watch: boolean) {
    this.#client = client;
    this.name = name;
    this.fence = BigInt(granted.fence);
    this.#lease = granted.lease;
    this.#believe(granted, sent);
    this.#plan(granted.renew_in_ms);
    if (watch) {
      void this.#watch();
    }
  }

  /** Whether this process may believe that it holds the lock, now. It asks no server. */
  get isHeld(): boolean {
    const now = clocks();
    return this.#why === undefined && now.steady < this.#until.steady && now.wall < this.#until.wall;
  }

  /** Throws `Lost` unless the lock is held. */
  check(): void {
    if (!this.isHeld) {
      throw new Lost("lost", this.#why ?? this.#expired());
    }
  }

  /** Aborted when the lock is lost or released, for `fetch` and the like. */
  get signal(): AbortSignal {
    return this.#over.signal;
  }

  /** Gives the lock back. Throws `Lost` if it was lost before. */
  async release(): Promise<void> {
    this.#stop("it was released");
    const answer = await this.#client.send("POST", `${path(this.name)}/release`, { lease: this.#lease });
    await answer.body?.cancel();
  }

  #expired(): string {
    return this.ending
      ? `broken by ${this.ending.by}: ${this.ending.why}`
      : "the lease ran out before it could be renewed";
  }

  #believe(answer: Renewal, sent: Clocks): void {
    this.#until = { steady: sent.steady + answer.believe_ms, wall: sent.wall + answer.believe_ms };
    // The stream may have told it while this answer was under way.
    this.ending = answer.ending ?? this.ending;
    this.#planEnd();
  }

  #planEnd(): void {
    clearTimeout(this.#end);
    const left = Math.max(this.#until.steady - performance.now(), 0);
    const look = () => (this.isHeld ? this.#planEnd() : this.#stop(this.#expired()));
    this.#end = setTimeout(look, Math.min(left, MAX_TIMER_MS));
  }

  #plan(pause: number): void {
    this.#timer = setTimeout(() => void this.#renew(pause), Math.min(pause, MAX_TIMER_MS));
  }

  async #renew(pause: number): Promise<void> {
    const sent = clocks();
    const left = this.#until.steady - sent.steady;
    if (!this.isHeld) {
      return this.#stop(this.#expired());
    }
    try {
      // A part of what is left: a connection that is dead leaves time for another try.
      const signal = within(Math.max(left / 3, 50));
      const answer = await this.#client.send("POST", `${path(this.name)}/renew`, { lease: this.#lease }, {}, signal);
      const renewed = (await answer.json()) as Renewal;
      if (this.#why !== undefined) {
        return;
      }
      this.#believe(renewed, sent);
      if (!renewed.ending) {
        this.#plan(renewed.renew_in_ms);
      }
    } catch (error) {
      if (error instanceof Lost) {
        this.#stop(error.message);
      } else if (this.#why === undefined) {
        const next = Math.min(pause, Math.max(left / 4, 50));
        this.#plan(next);
      }
    }
  }

  /** Ends belief; the first reason counts. */
  #stop(why: string): void {
    this.#why ??= why;
    clearTimeout(this.#timer);
    clearTimeout(this.#end);
    this.#stream.abort();
    this.#over.abort(new Lost("lost", this.#why));
  }

  /** Follows the stream of the lease. Renewals go on beside it, so that a stream that ends costs nothing. */
  async #watch(): Promise<void> {
    const headers = { "Oarlock-Lease": this.#lease };
    while (this.isHeld) {
      try {
        const answer = await this.#client.send("GET", `${path(this.name)}/watch`, undefined, headers, this.#stream.signal);
        const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
        for (let text = ""; ; ) {
          const silent = setTimeout(() => void reader.cancel(), SILENCE_MS);
          const { done, value } = await reader.read().finally(() => clearTimeout(silent));
          if (done) {
            break;
          }
          text += value;
          const events = text.split("\n\n");
          text = events.pop()!;
          events.forEach((event) => this.#told(event));
        }
      } catch (error) {
        // Else the server is gone, or has no stream left; or the lock was released.
        if (error instanceof Lost) {
          this.#stop(error.message);
        }
      }
      if (this.#why === undefined) {
        await sleep(1000);
      }
    }
  }

  #told(event: string): void {
    const [, kind, data] = /^event: (.*)\ndata: (.*)$/.exec(event) ?? [];
    if (kind === "ending") {
      this.ending = JSON.parse(data) as Ending;
    } else if (kind === "lost") {
      this.#stop((JSON.parse(data) as { detail: string }).detail);
    }
  }
}
