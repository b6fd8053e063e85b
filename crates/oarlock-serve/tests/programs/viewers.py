"""Opens pages of `oarlock serve` while locks are held and some are released and taken again, and prints what that costs: port, file with the
process id of the server, pages, locks, seconds. Start the server with `--rate 10000000`."""

import http.client
import json
import selectors
import socket
import sys
import threading
import time

PORT, PAGES, LOCKS, SECONDS = int(sys.argv[1]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
PID = int(open(sys.argv[2]).read())
received, first, is_over = [0], [0], threading.Event()


def post(connection, path, body):
    connection.request("POST", path, json.dumps(body))
    return json.loads(connection.getresponse().read())


def used():
    spent = open(f"/proc/{PID}/stat").read().rsplit(")", 1)[1].split()
    status = dict(line.split(":", 1) for line in open(f"/proc/{PID}/status") if ":" in line)
    kb = {key: int(status[key].split()[0]) for key in ("VmRSS", "VmHWM")}
    return (int(spent[11]) + int(spent[12])) / 100, kb["VmRSS"], kb["VmHWM"]


def read(pages):
    selector, new = selectors.DefaultSelector(), set(pages)
    for page in pages:
        selector.register(page, selectors.EVENT_READ)
    while not is_over.is_set():
        for key, _ in selector.select(0.2):
            data = key.fileobj.recv(1 << 20)
            received[0] += len(data)
            # The first event is whole when the next one or a comment begins; an empty line ends it.
            if key.fileobj in new and data.endswith(b"\n\n\r\n"):
                new.discard(key.fileobj)
                first[0] += 1


def path(number):
    return f"/v1/locks/job%2F{number}"


def take(connection, number):
    body = {"ttl_ms": 3600000, "label": {"reason": f"run {number}"}}
    return post(connection, path(number), body)["lease"]


def change(leases):
    connection = http.client.HTTPConnection("127.0.0.1", PORT)
    number = 0
    while not is_over.wait(0.05):
        post(connection, path(number) + "/release", {"lease": leases[number]})
        leases[number] = take(connection, number)
        number = (number + 1) % len(leases)


def report(what, before, began):
    cpu, rss, most = used()
    share = 100 * (cpu - before) / (time.time() - began)
    print(f"{what}: {rss / 1000:.0f} MB (at most {most / 1000:.0f}), {share:.0f} % of a core, "
          f"{received[0] / 1e6:.1f} MB sent in {time.time() - began:.0f} s", flush=True)


holder = http.client.HTTPConnection("127.0.0.1", PORT)
held = [take(holder, number) for number in range(LOCKS)]
print(f"{LOCKS} locks, no page: {used()[1] / 1000:.0f} MB", flush=True)
cpu, began, pages = used()[0], time.time(), []
for _ in range(PAGES):
    page = socket.create_connection(("127.0.0.1", PORT))
    page.sendall(b"GET /v1/watch HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    page.setblocking(False)
    pages.append(page)
threading.Thread(target=read, args=(pages,), daemon=True).start()
while first[0] < PAGES and time.time() < began + 300:
    time.sleep(0.1)
report(f"{first[0]} of {PAGES} pages have all locks", cpu, began)
(cpu, *_), began, received[0] = used(), time.time(), 0
threading.Thread(target=change, args=(held,), daemon=True).start()
time.sleep(SECONDS)
report(f"about 20 of them change a second, {SECONDS:.0f} s", cpu, began)
is_over.set()
