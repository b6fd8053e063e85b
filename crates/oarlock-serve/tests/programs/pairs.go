// Takes and releases locks of `oarlock serve` for three seconds, each client a name of its own: url, clients.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

func main() {
	clients, _ := strconv.Atoi(os.Args[2])
	http.DefaultTransport.(*http.Transport).MaxIdleConnsPerHost = clients
	var pairs int64
	end := time.Now().Add(3 * time.Second)
	var all sync.WaitGroup
	for c := 0; c < clients; c++ {
		all.Add(1)
		go func(c int) {
			defer all.Done()
			url := fmt.Sprintf("%s/v1/locks/p%d", os.Args[1], c)
			for time.Now().Before(end) {
				r, err := http.Post(url, "application/json", bytes.NewReader([]byte("{}")))
				if err != nil {
					panic(err)
				}
				var a map[string]any
				json.NewDecoder(r.Body).Decode(&a)
				io.Copy(io.Discard, r.Body)
				r.Body.Close()
				b, _ := json.Marshal(map[string]any{"lease": a["lease"]})
				r, err = http.Post(url+"/release", "application/json", bytes.NewReader(b))
				if err != nil || r.StatusCode != 200 {
					panic(fmt.Sprint(err, r, a))
				}
				io.Copy(io.Discard, r.Body)
				r.Body.Close()
				atomic.AddInt64(&pairs, 1)
			}
		}(c)
	}
	all.Wait()
	fmt.Println(clients, "clients:", pairs/3, "pairs/s over HTTP")
}
