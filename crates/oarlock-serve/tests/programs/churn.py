"""Takes and releases locks of `oarlock serve` while pages are open, and prints each minute what the server uses, and at
the end how fast its memory grew in the second half: port, seconds, pages, file with its process id, how many clients
(2), and how many of their locks come to one that is left to its lease of five seconds (10)."""

import http.client
import json
import selectors
import socket
import sys
import threading
import time

PORT, SECONDS, PAGES = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
PID = int(open(sys.argv[4]).read())
CLIENTS = int(sys.argv[5]) if len(sys.argv) > 5 else 2
LEFT = int(sys.argv[6]) if len(sys.argv) > 6 else 10
BEGAN = time.time()
END = BEGAN + SECONDS
locks = [0] * CLIENTS


def page():
    stream = socket.create_connection(("127.0.0.1", PORT))
    stream.sendall(b"GET /v1/watch HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    stream.setblocking(False)
    return stream


def read(pages):
    selector = selectors.DefaultSelector()
    for stream in pages:
        selector.register(stream, selectors.EVENT_READ)
    while time.time() < END:
        for key, _ in selector.select(1):
            key.fileobj.recv(1 << 16)


def churn(number):
    connection = http.client.HTTPConnection("127.0.0.1", PORT)

    def post(path, body):
        connection.request("POST", path, json.dumps(body))
        return json.loads(connection.getresponse().read())

    while time.time() < END:
        path = f"/v1/locks/churn%2F{number}%2F{locks[number] % 500}"
        granted = post(path, {"ttl_ms": 5000})
        if "lease" in granted and locks[number] % LEFT:
            post(path + "/release", {"lease": granted["lease"]})
        locks[number] += 1
        time.sleep(0.02)


threading.Thread(target=read, args=([page() for _ in range(PAGES)],), daemon=True).start()
for number in range(CLIENTS):
    threading.Thread(target=churn, args=(number,), daemon=True).start()
samples = []
while time.time() < END:
    status = dict(line.split(":", 1) for line in open(f"/proc/{PID}/status") if ":" in line)
    spent = open(f"/proc/{PID}/stat").read().rsplit(")", 1)[1].split()
    cpu = (int(spent[11]) + int(spent[12])) / 100
    age = time.time() - BEGAN
    samples.append((age, int(status["VmRSS"].split()[0])))
    print(f"{age:.0f} s: {samples[-1][1]} kB, {cpu} s of CPU, {sum(locks)} locks", flush=True)
    time.sleep(max(0, min(60, END - time.time())))
half = [(x / 3600, y) for x, y in samples if x >= SECONDS / 2]
if len(half) > 2:
    # The straight line with the least squares.
    mean_x, mean_y = (sum(column) / len(half) for column in zip(*half))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in half) / sum((x - mean_x) ** 2 for x, _ in half)
    print(f"second half: {slope:.0f} kB an hour, {min(y for _, y in half)} to {max(y for _, y in half)} kB")
