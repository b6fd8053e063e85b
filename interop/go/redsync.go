package main

import (
	"context"
	"errors"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"
)

// shortestPause is the least that redsync sleeps between two tries: a waiting time is turned into a number of tries by it.
const shortestPause = 50 * time.Millisecond

// redsyncClient is redsync over go-redis, on one server or several.
type redsyncClient struct {
	servers []*goredislib.Client
	redsync *redsync.Redsync
}

func newRedsync(urls string) (Client, error) {
	client := &redsyncClient{}
	var pools []redis.Pool
	for url := range strings.SplitSeq(urls, ",") {
		options, err := goredislib.ParseURL(url)
		if err != nil {
			return nil, err
		}
		server := goredislib.NewClient(options)
		if err := server.Ping(context.Background()).Err(); err != nil {
			return nil, err
		}
		client.servers = append(client.servers, server)
		pools = append(pools, goredis.NewPool(server))
	}
	client.redsync = redsync.New(pools...)
	return client, nil
}

// version is that of a module this program was built with.
func version(module string) string {
	info, _ := debug.ReadBuildInfo()
	for _, dependency := range info.Deps {
		if dependency.Path == module {
			return dependency.Version
		}
	}
	return "?"
}

func (c *redsyncClient) Version() string { return version("github.com/go-redsync/redsync/v4") }

func (c *redsyncClient) Lock(kind, name string) (Lock, string) {
	if kind != "mutex" {
		return nil, "redsync has no " + kind + " lock"
	}
	return &redsyncLock{client: c, name: name}, ""
}

func (c *redsyncClient) ForceUnlock(name string) (bool, error) {
	// There is no call for it: users delete the key.
	var freed int64
	for _, server := range c.servers {
		count, err := server.Del(context.Background(), name).Result()
		if err != nil {
			return false, err
		}
		freed += count
	}
	return freed > 0, nil
}

type redsyncLock struct {
	client *redsyncClient
	name   string
	mutex  *redsync.Mutex
	keeper *keeper
}

func (l *redsyncLock) Fence() string { return "-" }

func (l *redsyncLock) Acquire(lease, wait time.Duration, renewed bool) (bool, error) {
	tries := 1 + int(wait/shortestPause)
	l.mutex = l.client.redsync.NewMutex(l.name, redsync.WithExpiry(lease), redsync.WithTries(tries))
	ctx, cancel := context.WithTimeout(context.Background(), max(wait, lease))
	defer cancel()
	err := l.mutex.LockContext(ctx)
	var taken *redsync.ErrTaken
	if errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) || errors.Is(err, context.DeadlineExceeded) {
		return false, nil
	}
	if err == nil && renewed {
		l.keeper = keep(lease, func() error {
			extended, err := l.mutex.Extend()
			if err == nil && !extended {
				err = redsync.ErrExtendFailed
			}
			return err
		})
	}
	return err == nil, err
}

func (l *redsyncLock) Again() (bool, string, error) { return false, "redsync is not re-entrant", nil }

func (l *redsyncLock) Loss() error {
	if l.keeper != nil {
		if err := l.keeper.loss(); err != nil {
			return err
		}
	}
	// Also while a renewal is under way: users read the end of the lease.
	if time.Now().After(l.mutex.Until()) {
		return errors.New("its lease ran out")
	}
	return nil
}

func (l *redsyncLock) Release() error {
	if l.keeper != nil {
		l.keeper.end()
	}
	freed, err := l.mutex.Unlock()
	if err == nil && !freed {
		err = errors.New("it was not ours any more")
	}
	return err
}
