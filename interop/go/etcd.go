package main

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// etcdClient is the concurrency package of etcd's own client: a session, which is a lease, for each lock.
type etcdClient struct {
	etcd *clientv3.Client
}

func newEtcd(urls string) (Client, error) {
	var endpoints []string
	for url := range strings.SplitSeq(urls, ",") {
		endpoints = append(endpoints, strings.Replace(url, "etcd://", "http://", 1))
	}
	etcd, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 30 * time.Second})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := etcd.Get(ctx, "oarlock:none"); err != nil {
		return nil, err
	}
	return &etcdClient{etcd: etcd}, nil
}

func (c *etcdClient) Version() string { return version("go.etcd.io/etcd/client/v3") }

func (c *etcdClient) Lock(kind, name string) (Lock, string) {
	if kind != "mutex" && kind != "fair" && kind != "election" {
		return nil, "concurrency has no " + kind + " lock"
	}
	return &etcdLock{client: c, kind: kind, name: name}, ""
}

func (c *etcdClient) ForceUnlock(name string) (bool, error) {
	// There is no call for it: users delete the first key.
	first := append(clientv3.WithFirstCreate(), clientv3.WithPrefix())
	found, err := c.etcd.Get(context.Background(), name+"/", first...)
	if err != nil || len(found.Kvs) == 0 {
		return false, err
	}
	deleted, err := c.etcd.Delete(context.Background(), string(found.Kvs[0].Key))
	return err == nil && deleted.Deleted > 0, err
}

// isTaken tells whether the lock has a holder or a waiter.
func (c *etcdClient) isTaken(ctx context.Context, name string) bool {
	found, err := c.etcd.Get(ctx, name+"/", clientv3.WithPrefix(), clientv3.WithLimit(1))
	return err == nil && len(found.Kvs) > 0
}

type etcdLock struct {
	client   *etcdClient
	kind     string
	name     string
	session  *concurrency.Session
	mutex    *concurrency.Mutex
	election *concurrency.Election
	renewed  bool
}

func (l *etcdLock) Fence() string {
	if l.election != nil {
		// What it knows is when it joined the line, not when it was elected.
		return "-"
	}
	return strconv.FormatInt(l.mutex.Header().Revision, 10)
}

// open makes a session of at least a second, with a lease that is kept alive only if that was asked for.
func (l *etcdLock) open(lease time.Duration, renewed bool) error {
	seconds := max(1, int((lease+time.Second-1)/time.Second))
	options := []concurrency.SessionOption{concurrency.WithTTL(seconds)}
	session, err := concurrency.NewSession(l.client.etcd, options...)
	if err != nil {
		return err
	}
	l.session, l.renewed = session, renewed
	return nil
}

func (l *etcdLock) Acquire(lease, wait time.Duration, renewed bool) (bool, error) {
	if err := l.open(lease, renewed); err != nil {
		return false, err
	}
	once := wait == 0
	if once {
		// Long enough to be sure, on a busy machine.
		wait = 5 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	var err error
	switch {
	case l.kind == "election" && once && l.client.isTaken(ctx, l.name):
		// There is no try for a campaign: users read the key first.
		err = concurrency.ErrLocked
	case l.kind == "election":
		l.election = concurrency.NewElection(l.session, l.name)
		err = l.election.Campaign(ctx, "go")
	case once:
		l.mutex = concurrency.NewMutex(l.session, l.name)
		err = l.mutex.TryLock(ctx)
	default:
		l.mutex = concurrency.NewMutex(l.session, l.name)
		err = l.mutex.Lock(ctx)
	}
	if err == nil {
		if !renewed {
			// The lease is left to run out.
			l.session.Orphan()
		}
		return true, nil
	}
	l.session.Close()
	if errors.Is(err, concurrency.ErrLocked) || errors.Is(err, context.DeadlineExceeded) {
		return false, nil
	}
	return false, err
}

func (l *etcdLock) Again() (bool, string, error) {
	return false, "a session that locks again holds what it has, and counts nothing", nil
}

// key is the key of this hold in etcd.
func (l *etcdLock) key() string {
	if l.election != nil {
		return l.election.Key()
	}
	return l.mutex.Key()
}

func (l *etcdLock) Loss() error {
	if err := l.expired(); err != nil {
		return err
	}
	// The session does not notice that its key was deleted: users read it.
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	found, err := l.client.etcd.Get(ctx, l.key())
	if err == nil && len(found.Kvs) == 0 {
		return errors.New("its key is gone")
	}
	// It may have ended during the request.
	return l.expired()
}

func (l *etcdLock) expired() error {
	if !l.renewed {
		return nil
	}
	select {
	case <-l.session.Done():
		return concurrency.ErrSessionExpired
	default:
		return nil
	}
}

func (l *etcdLock) Release() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	loss := l.Loss()
	var err error
	if l.election != nil {
		err = l.election.Resign(ctx)
	} else {
		err = l.mutex.Unlock(ctx)
	}
	// Also when it was left to run out.
	_, revoked := l.client.etcd.Revoke(ctx, l.session.Lease())
	if loss != nil {
		return loss
	}
	if err == nil && l.renewed {
		err = revoked
	}
	return err
}
