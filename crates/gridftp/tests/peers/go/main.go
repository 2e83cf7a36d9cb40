// What github.com/jlaffaye/ftp does with a server: main ADDRESS FILE puts the file, lists it, gets it back, gets a part of it, renames
// and removes it, and makes and removes a tree.
package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/jlaffaye/ftp"
)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	content, err := os.ReadFile(os.Args[2])
	must(err)
	c, err := ftp.Dial(os.Args[1], ftp.DialWithTimeout(time.Minute))
	must(err)
	must(c.Login("anonymous", "me@"))
	must(c.MakeDir("go"))
	must(c.Stor("go/a b", bytes.NewReader(content)))
	size, err := c.FileSize("go/a b")
	must(err)
	all, err := c.List("go")
	must(err)
	// It gives the directory itself and the one above, too, where MLSD does.
	var entries []*ftp.Entry
	for _, entry := range all {
		if entry.Name != "." && entry.Name != ".." {
			entries = append(entries, entry)
		}
	}
	if size != int64(len(content)) || len(entries) != 1 || entries[0].Name != "a b" || entries[0].Size != uint64(size) {
		log.Fatalf("%d %v", size, entries)
	}
	for _, from := range []int{0, 1000000} {
		r, err := c.RetrFrom("go/a b", uint64(from))
		must(err)
		got, err := io.ReadAll(r)
		must(err)
		must(r.Close())
		if !bytes.Equal(got, content[from:]) {
			log.Fatalf("%d bytes from %d on", len(got), from)
		}
	}
	must(c.Rename("go/a b", "go/b"))
	must(c.MakeDir("go/d"))
	walker, count := c.Walk("go"), 0
	for walker.Next() {
		count++
	}
	must(walker.Err())
	must(c.Delete("go/b"))
	must(c.RemoveDirRecur("go"))
	must(c.Quit())
	fmt.Println("walked", count)
}
