//go:build ignore

// Gen copies the time zone data of the Go toolchain that runs it, with the data's version and checksum, so that the
// program's zones change only with a commit. Run it by `go generate ./cron` after an update of the toolchain.
package main

import (
	"crypto/sha256"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
)

func main() {
	dir := filepath.Join(runtime.GOROOT(), "lib", "time")
	data, err := os.ReadFile(filepath.Join(dir, "zoneinfo.zip"))
	if err != nil {
		log.Fatal(err)
	}
	// The archive does not name its version; the script that made it does.
	script, err := os.ReadFile(filepath.Join(dir, "update.bash"))
	if err != nil {
		log.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^DATA=(\w+)$`).FindSubmatch(script)
	if version == nil {
		log.Fatal("no DATA=… in update.bash")
	}
	if err := os.WriteFile("zoneinfo.zip", data, 0o644); err != nil {
		log.Fatal(err)
	}
	text := fmt.Sprintf("%s %x\n", version[1], sha256.Sum256(data))
	if err := os.WriteFile("zoneinfo.version", []byte(text), 0o644); err != nil {
		log.Fatal(err)
	}
}
