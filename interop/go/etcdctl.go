package main

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// etcdctlClient is the command `etcdctl lock`, as scripts use it: a process for each lock.
type etcdctlClient struct {
	endpoints string
}

func newEtcdctl(urls string) (Client, error) {
	client := &etcdctlClient{endpoints: strings.ReplaceAll(urls, "etcd://", "http://")}
	_, err := client.run("get", "oarlock:none")
	return client, err
}

// command dies with this program, however that ends.
func (c *etcdctlClient) command(words ...string) *exec.Cmd {
	command := exec.Command("etcdctl", append([]string{"--endpoints=" + c.endpoints}, words...)...)
	command.Env = append(os.Environ(), "ETCDCTL_API=3")
	command.Stderr = os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return command
}

func (c *etcdctlClient) run(words ...string) (string, error) {
	text, err := c.command(words...).Output()
	return strings.TrimSpace(string(text)), err
}

func (c *etcdctlClient) Version() string {
	text, err := c.run("version")
	if err != nil {
		return "?"
	}
	first, _, _ := strings.Cut(text, "\n")
	return strings.TrimPrefix(first, "etcdctl version: ")
}

func (c *etcdctlClient) Lock(kind, name string) (Lock, string) {
	if kind != "mutex" && kind != "fair" {
		return nil, "etcdctl lock has no " + kind + " lock"
	}
	return &etcdctlLock{client: c, name: name}, ""
}

// first is the key at the head of the line, or nothing.
func (c *etcdctlClient) first(name string) (string, error) {
	return c.run("get", name+"/", "--prefix", "--keys-only", "--sort-by=CREATE", "--limit=1")
}

func (c *etcdctlClient) ForceUnlock(name string) (bool, error) {
	// There is no call for it: users delete the first key.
	key, err := c.first(name)
	if err != nil || key == "" {
		return false, err
	}
	deleted, err := c.run("del", key)
	return deleted == "1", err
}

type etcdctlLock struct {
	client *etcdctlClient
	name   string
	key    string
	holder *exec.Cmd
	ended  chan error
}

func (l *etcdctlLock) Fence() string { return "-" }

// Acquire: the lease is always kept alive, by the process.
func (l *etcdctlLock) Acquire(lease, wait time.Duration, _ bool) (bool, error) {
	if wait == 0 {
		// There is no try: users read the key first.
		if key, err := l.client.first(l.name); err != nil || key != "" {
			return false, err
		}
		wait = 5 * time.Second
	}
	seconds := max(1, int((lease+time.Second-1)/time.Second))
	l.holder = l.client.command("lock", l.name, "--ttl="+strconv.Itoa(seconds))
	out, err := l.holder.StdoutPipe()
	if err != nil {
		return false, err
	}
	if err := l.holder.Start(); err != nil {
		return false, err
	}
	granted := make(chan string, 1)
	l.ended = make(chan error, 1)
	go func() {
		// The first line is its key, when it is granted; then nothing until the end.
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if key := strings.TrimSpace(lines.Text()); key != "" {
				granted <- key
				break
			}
		}
		for lines.Scan() {
		}
		l.ended <- l.holder.Wait()
	}()
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	select {
	case l.key = <-granted:
		return true, nil
	case err := <-l.ended:
		return false, errors.Join(errors.New("etcdctl lock ended"), err)
	case <-ctx.Done():
		// It takes its key away when it is interrupted.
		_ = l.holder.Process.Signal(os.Interrupt)
		<-l.ended
		return false, nil
	}
}

func (l *etcdctlLock) Again() (bool, string, error) {
	return false, "every etcdctl lock is an owner of its own", nil
}

func (l *etcdctlLock) Loss() error {
	select {
	case err := <-l.ended:
		l.ended <- err
		return errors.Join(errors.New("etcdctl lock ended"), err)
	default:
	}
	// The process does not notice that its key was deleted: users read it.
	if key, err := l.client.run("get", l.key, "--keys-only"); err == nil && key == "" {
		return errors.New("its key is gone")
	}
	return nil
}

func (l *etcdctlLock) Release() error {
	if err := l.holder.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	return <-l.ended
}
