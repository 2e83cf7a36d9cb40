// Fetches a URL as often at once as asked for, and prints how many bytes came. Built without cgo it is static, and makes
// its system calls itself.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
)

func fetch(client *http.Client, url string) (int64, error) {
	response, err := client.Get(url)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	return io.Copy(io.Discard, response.Body)
}

func main() {
	count, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var all sync.WaitGroup
	var lock sync.Mutex
	var bytes int64
	for range count {
		all.Add(1)
		go func() {
			defer all.Done()
			got, err := fetch(client, os.Args[1])
			lock.Lock()
			defer lock.Unlock()
			bytes += got
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
	}
	all.Wait()
	fmt.Println(bytes)
}
