package main

import (
	"sync"
	"time"
)

// keeper calls extend every third of a lease, for libraries that leave this to their users.
type keeper struct {
	stop chan struct{}
	done chan struct{}
	mu   sync.Mutex
	err  error
}

func keep(lease time.Duration, extend func() error) *keeper {
	k := &keeper{stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(k.done)
		ticks := time.NewTicker(lease / 3)
		defer ticks.Stop()
		for {
			select {
			case <-k.stop:
				return
			case <-ticks.C:
				if err := extend(); err != nil {
					k.mu.Lock()
					k.err = err
					k.mu.Unlock()
					return
				}
			}
		}
	}()
	return k
}

func (k *keeper) loss() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

func (k *keeper) end() {
	close(k.stop)
	<-k.done
}
