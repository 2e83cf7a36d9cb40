// Fetches addresses by the proxy that its environment names, as programs in Go do, and prints the lengths.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	for _, url := range os.Args[1:] {
		answer, err := http.Get(url)
		if err == nil && answer.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s", answer.Status)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		length, err := io.Copy(io.Discard, answer.Body)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(length)
	}
}
