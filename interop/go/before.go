package main

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// before is the program before the move, as docs/guide/migrate/etcd.md shows it. It is compiled, not run.
func before(client *clientv3.Client, work func()) error {
	session, err := concurrency.NewSession(client, concurrency.WithTTL(10))
	if err != nil {
		return err
	}
	defer session.Close()
	mutex := concurrency.NewMutex(session, "/job")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := mutex.Lock(ctx); err != nil {
		return err
	}
	defer mutex.Unlock(context.Background())
	work() // must watch session.Done() itself
	return nil
}
