// A peer in Go: see ../README.md for its protocol.
//
// usage: peer <client> <url>
package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lease = 10 * time.Second
	wait  = 60 * time.Second
	poll  = 10 * time.Millisecond
)

// Client is one lock library.
type Client interface {
	Version() string
	// Lock makes a lock that is not held yet; cannot says why there is no such kind.
	Lock(kind, name string) (lock Lock, cannot string)
	// ForceUnlock takes the lock from its holder; false if it was free.
	ForceUnlock(name string) (bool, error)
}

// Lock is one lock of one owner.
type Lock interface {
	// Acquire waits for wait at most, once only if that is 0. With renewed it is kept alive until it is released.
	Acquire(lease, wait time.Duration, renewed bool) (bool, error)
	// Fence is a number that grows with every grant, or "-".
	Fence() string
	// Again enters once more; cannot says why that is not possible.
	Again() (held bool, cannot string, err error)
	// Loss is nil while it is held.
	Loss() error
	// Release fails if it was lost.
	Release() error
}

var clients = map[string]func(url string) (Client, error){
	"concurrency": newEtcd,
	"etcdctl":     newEtcdctl,
	"redsync":     newRedsync,
}

// now reads the clock that all processes of this machine share.
func now() int64 {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &at); err != nil {
		panic(err)
	}
	return at.Nano()
}

// plain is an error in one line.
func plain(err error) string {
	words := strings.Join(strings.Fields(err.Error()), " ")
	return words[:min(len(words), 120)]
}

func main() {
	name := os.Args[1]
	client, err := clients[name](os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var out sync.Mutex
	say := func(line string) {
		out.Lock()
		defer out.Unlock()
		fmt.Println(line)
	}
	say("ready " + name + " " + client.Version())
	workers := map[string]chan []string{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		handle := words[1]
		if workers[handle] == nil {
			commands := make(chan []string, 16)
			workers[handle] = commands
			go func() {
				worker := worker{client: client, name: name, handle: handle}
				for words := range commands {
					say(worker.obey(words[0], words[2:]))
				}
			}()
		}
		workers[handle] <- words
	}
}
