package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// worker obeys the commands of one handle.
type worker struct {
	client       Client
	name, handle string
	hold         Lock
}

func (w *worker) obey(verb string, args []string) string {
	switch verb {
	case "lock":
		return w.lock(args[0], args[1], args[2], args[3])
	case "again":
		held, cannot, err := w.hold.Again()
		return w.granted(w.hold, held, cannot, err)
	case "unlock":
		before := now()
		if err := w.hold.Release(); err != nil {
			return fmt.Sprintf("lost %s %d %s", w.handle, now(), plain(err))
		}
		return fmt.Sprintf("freed %s %d", w.handle, before)
	case "held":
		if w.hold.Loss() != nil {
			return "no " + w.handle
		}
		return "yes " + w.handle
	case "loss":
		return w.loss(args[0])
	case "break":
		before := now()
		freed, err := w.client.ForceUnlock(args[0])
		if err != nil {
			return w.failed(err)
		}
		if !freed {
			return "free " + w.handle
		}
		return fmt.Sprintf("freed %s %d", w.handle, before)
	case "count":
		return w.count(args[0], args[1], args[2], number(args[3]))
	case "load":
		return w.load(args[0], args[1], number(args[2]), args[3], args[4])
	case "pairs":
		return w.pairs(args[0], args[1], number(args[2]), args[3])
	}
	return w.cannot("there is no command " + verb)
}

func (w *worker) cannot(why string) string { return "cannot " + w.handle + " " + why }
func (w *worker) failed(err error) string  { return "error " + w.handle + " " + plain(err) }

func (w *worker) granted(lock Lock, held bool, cannot string, err error) string {
	switch {
	case cannot != "":
		return w.cannot(cannot)
	case err != nil:
		return w.failed(err)
	case !held:
		return "busy " + w.handle
	}
	return fmt.Sprintf("held %s %d %s", w.handle, now(), lock.Fence())
}

func (w *worker) lock(kind, name, lease, wait string) string {
	lock, cannot := w.client.Lock(kind, name)
	if cannot != "" {
		return w.cannot(cannot)
	}
	span, renewed := strings.CutPrefix(lease, "renew:")
	held, err := lock.Acquire(millis(span), millis(wait), renewed)
	if held {
		w.hold = lock
	}
	return w.granted(lock, held, "", err)
}

func (w *worker) loss(wait string) string {
	end := now() + int64(millis(wait))
	for now() < end {
		if err := w.hold.Loss(); err != nil {
			return fmt.Sprintf("lost %s %d %s", w.handle, now(), plain(err))
		}
		time.Sleep(poll)
	}
	return "kept " + w.handle
}

func (w *worker) count(kind, name, path string, rounds int) string {
	for range rounds {
		lock, cannot := w.client.Lock(kind, name)
		if cannot != "" {
			return w.cannot(cannot)
		}
		if err := acquire(lock, wait); err != nil {
			return w.failed(err)
		}
		text, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, []byte(strconv.Itoa(number(string(text))+1)), 0o600)
		}
		if err == nil {
			err = lock.Release()
		}
		if err != nil {
			return w.failed(err)
		}
	}
	return fmt.Sprintf("counted %s %d", w.handle, rounds)
}

func (w *worker) load(kind, name string, contenders int, seconds, path string) string {
	end := now() + nanos(seconds)
	grants := make([][]string, contenders)
	err := w.together(contenders, kind, func(int) string { return name }, func(contender int, lock Lock) error {
		for asked := now(); asked < end; asked = now() {
			if err := acquire(lock, wait); err != nil {
				return err
			}
			granted := now()
			releasing := now()
			if err := lock.Release(); err != nil {
				return err
			}
			line := fmt.Sprintf("%d %d %d %d %d\n", contender, asked, granted, releasing, now())
			grants[contender] = append(grants[contender], line)
		}
		return nil
	})
	if err != nil {
		return w.failed(err)
	}
	all := slices.Concat(grants...)
	if err := os.WriteFile(path, []byte(strings.Join(all, "")), 0o600); err != nil {
		return w.failed(err)
	}
	return fmt.Sprintf("loaded %s %d", w.handle, len(all))
}

func (w *worker) pairs(kind, name string, tasks int, seconds string) string {
	end := now() + nanos(seconds)
	took := make([][]int64, tasks)
	own := func(task int) string { return fmt.Sprintf("%s-%d", name, task) }
	err := w.together(tasks, kind, own, func(task int, lock Lock) error {
		for start := now(); start < end; start = now() {
			if err := acquire(lock, 0); err != nil {
				return err
			}
			if err := lock.Release(); err != nil {
				return err
			}
			took[task] = append(took[task], now()-start)
		}
		return nil
	})
	if err != nil {
		return w.failed(err)
	}
	all := slices.Concat(took...)
	slices.Sort(all)
	return fmt.Sprintf("pairs %s %d %d %d", w.handle, len(all), all[len(all)/2], all[len(all)*99/100])
}

// together runs work many times at once, each with a lock of its own, and gives the first error of any.
func (w *worker) together(many int, kind string, name func(int) string, work func(int, Lock) error) error {
	var all sync.WaitGroup
	errs := make(chan error, many)
	for number := range many {
		lock, cannot := w.client.Lock(kind, name(number))
		if cannot != "" {
			return fmt.Errorf("cannot: %s", cannot)
		}
		all.Add(1)
		go func() {
			defer all.Done()
			if err := work(number, lock); err != nil {
				errs <- err
			}
		}()
	}
	all.Wait()
	close(errs)
	return <-errs
}

func acquire(lock Lock, wait time.Duration) error {
	held, err := lock.Acquire(lease, wait, false)
	if err == nil && !held {
		return fmt.Errorf("the lock is held by another, for %v", wait)
	}
	return err
}

func number(text string) int {
	value, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		panic(err)
	}
	return value
}

func millis(text string) time.Duration { return time.Duration(number(text)) * time.Millisecond }

func nanos(seconds string) int64 {
	value, err := strconv.ParseFloat(seconds, 64)
	if err != nil {
		panic(err)
	}
	return int64(value * 1e9)
}
