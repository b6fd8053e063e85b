// Takes turns under a lock of `oarlock serve`, with plain HTTP: url, file, rounds.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

type granted struct {
	Lease     string `json:"lease"`
	BelieveMs int64  `json:"believe_ms"`
}

func post(url string, body any, answer any) int {
	text, _ := json.Marshal(body)
	reply, err := http.Post(url, "application/json", bytes.NewReader(text))
	if err != nil {
		log.Fatal(err)
	}
	defer reply.Body.Close()
	if answer != nil && reply.StatusCode < 300 {
		if err := json.NewDecoder(reply.Body).Decode(answer); err != nil {
			log.Fatal(err)
		}
	}
	return reply.StatusCode
}

func main() {
	lock, path := os.Args[1]+"/v1/locks/count", os.Args[2]
	rounds, _ := strconv.Atoi(os.Args[3])
	// The wait-for graph needs both.
	host, _ := os.Hostname()
	label := map[string]any{"host": host, "pid": os.Getpid(), "reason": "go"}
	for round := 0; round < rounds; {
		var held granted
		sent := time.Now()
		status := post(lock, map[string]any{"wait_ms": 60000, "ttl_ms": 10000, "label": label}, &held)
		if status == http.StatusConflict {
			continue
		} else if status != http.StatusCreated {
			log.Fatalf("status %d", status)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			log.Fatal(err)
		}
		before, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		time.Sleep(2 * time.Millisecond)
		if time.Since(sent) < time.Duration(held.BelieveMs)*time.Millisecond {
			if err := os.WriteFile(path, []byte(fmt.Sprint(before+1)), 0o644); err != nil {
				log.Fatal(err)
			}
			round++
		}
		if status := post(lock+"/release", map[string]any{"lease": held.Lease}, nil); status != http.StatusOK && status != http.StatusGone {
			log.Fatalf("release: status %d", status)
		}
	}
}
