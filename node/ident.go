package node

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/node/control"
	"github.com/carillon-scheduler/carillon/node/peer"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
)

// dataFormat is the layout of the data directory that this binary writes, and the newest it reads.
const dataFormat = 1

// Names in the data directory.
const (
	lockFile   = "LOCK"
	formatFile = "FORMAT"
	identFile  = "ident"
	etcdDir    = "etcd"
	pebbleDir  = "pebble"
	tlsDir     = "tls"
	rescueFile = "RESCUE"
)

var (
	// ErrDataDirInUse: another process runs on the data directory.
	ErrDataDirInUse = errors.New("data directory is in use")
	// ErrNewerFormat: a newer binary wrote the data directory.
	ErrNewerFormat = errors.New("data directory has a newer format")
	// ErrShardsLost: the store has had shards, and its database holds none. To make new ones would hide that.
	ErrShardsLost = errors.New("the shards of the store are lost")
	// ErrIdentLost: the data directory holds data, but not whose. To guess could let two stores be one.
	ErrIdentLost = errors.New("identity of the store is lost")
	// ErrRescueBegun: a rescue of the data directory has begun and not ended. What it holds is half of one cluster and half of
	// another.
	ErrRescueBegun = errors.New("a rescue has begun in it and not ended")
)

// Ident is who a store is. It stands on the disk and nowhere else: a wiped disk is a new store.
type Ident struct {
	// ClusterID and StoreUUID are 128 random bits in hexadecimal, made at the first start.
	ClusterID string `json:"cluster_id"`
	StoreUUID string `json:"store_uuid"`
	// Name is the node's name as of the last start.
	Name string `json:"name"`
	// Boots counts the starts, this one included.
	Boots     uint64 `json:"boots"`
	CreatedMS int64  `json:"created_ms"`
	// Formed: its shards have been made. If there are none later, they are lost.
	Formed bool `json:"formed,omitempty"`
	// BootID tells this start from any other; it is not kept.
	BootID string `json:"-"`
}

// DataDir is a node's data directory, locked against other processes.
type DataDir struct {
	path string
	lock *fileutil.LockedFile

	mu    sync.Mutex
	ident Ident // guarded by mu
}

// OpenDataDir locks the directory at path, makes it if need be, and counts one more start of its store, durably. A
// directory that belongs to another process, to a newer binary or to nobody known is refused. Its files are:
//
//	LOCK    held while a process runs on the directory; its id
//	FORMAT  the number of the directory's layout
//	ident   who the store is
//	etcd/   the control plane's member
//	tls/    the certificate that this start shows to other nodes
//	pebble/ the shards
//	RESCUE  there while a rescue is not done
func OpenDataDir(path, name string) (*DataDir, error) {
	d := &DataDir{path: path}
	if err := d.open(name); err != nil {
		return nil, errors.Join(fmt.Errorf("open data directory %s: %w", path, err), d.Close())
	}
	return d, nil
}

// openStanding locks a directory that a node has run on, as it stands: it counts no start.
func openStanding(path string) (*DataDir, error) {
	d := &DataDir{path: path}
	if err := d.openStanding(); err != nil {
		return nil, errors.Join(fmt.Errorf("open data directory %s: %w", path, err), d.Close())
	}
	return d, nil
}

func (d *DataDir) openStanding() (err error) {
	for _, name := range []string{formatFile, identFile} {
		if !isFile(d.file(name)) {
			return fmt.Errorf("it has no file %s: no node has run on it", name)
		}
	}
	if err := d.takeLock(); err != nil {
		return err
	}
	if err := d.checkFormat(); err != nil {
		return err
	}
	d.ident, err = d.readIdent()
	return err
}

func (d *DataDir) open(name string) error {
	if err := os.MkdirAll(d.path, 0o700); err != nil {
		return err
	}
	// Its own name must survive a crash too.
	if err := syncDir(filepath.Dir(filepath.Clean(d.path))); err != nil {
		return err
	}
	if err := d.takeLock(); err != nil {
		return err
	}
	if err := d.checkFormat(); err != nil {
		return err
	}
	if d.rescueBegun() {
		return fmt.Errorf("%w; finish it: carillon cluster rescue --data %s", ErrRescueBegun, d.path)
	}
	ident, err := d.readIdent()
	if err != nil {
		return err
	}
	ident.Name = name
	ident.Boots++
	ident.BootID = randomID()
	if err := d.writeFile(identFile, ident.encode()); err != nil {
		return err
	}
	d.ident = ident
	return nil
}

// Ident is who the store of the directory is.
func (d *DataDir) Ident() Ident {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ident
}

// TLSDir is where the node's certificate for other nodes is, TLSFiles what etcd needs of it.
func (d *DataDir) TLSDir() string { return d.file(tlsDir) }

func (d *DataDir) TLSFiles() control.TLSFiles {
	return control.TLSFiles{
		CA:   filepath.Join(d.TLSDir(), peer.CAFile),
		Cert: filepath.Join(d.TLSDir(), peer.CertFile),
		Key:  filepath.Join(d.TLSDir(), peer.KeyFile),
	}
}

// EtcdDir and PebbleDir are the directories of the two databases.
func (d *DataDir) EtcdDir() string   { return d.file(etcdDir) }
func (d *DataDir) PebbleDir() string { return d.file(pebbleDir) }

// MarkFormed notes durably that the store's shards have been made.
func (d *DataDir) MarkFormed() error {
	formed := d.Ident()
	if formed.Formed {
		return nil
	}
	formed.Formed = true
	if err := d.replaceIdent(formed); err != nil {
		return fmt.Errorf("mark data directory %s as formed: %w", d.path, err)
	}
	return nil
}

// Adopt makes the store one of a cluster that has admitted it. A store that has shards is of its cluster for good.
func (d *DataDir) Adopt(clusterID string) error {
	ident := d.Ident()
	switch {
	case ident.ClusterID == clusterID:
		return nil
	case ident.Formed:
		return fmt.Errorf("join cluster %s: the store in %s is of cluster %s", clusterID, d.path, ident.ClusterID)
	case !isID(clusterID):
		return fmt.Errorf("join cluster: %q is no cluster's id", clusterID)
	}
	ident.ClusterID = clusterID
	if err := d.replaceIdent(ident); err != nil {
		return fmt.Errorf("join cluster %s: %w", clusterID, err)
	}
	return nil
}

// beginRescue notes durably that no node may start on the directory until endRescue.
func (d *DataDir) beginRescue() error {
	return d.writeFile(rescueFile, []byte("carillon cluster rescue has begun here and has to be finished\n"))
}

func (d *DataDir) endRescue() error {
	if err := os.Remove(d.file(rescueFile)); err != nil {
		return err
	}
	return syncDir(d.path)
}

func (d *DataDir) rescueBegun() bool { return isFile(d.file(rescueFile)) }

func (d *DataDir) replaceIdent(ident Ident) error {
	if err := d.writeFile(identFile, ident.encode()); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ident = ident
	return nil
}

// Close lets other processes have the directory.
func (d *DataDir) Close() error {
	if d.lock == nil {
		return nil
	}
	err := d.lock.Close()
	d.lock = nil
	return err
}

func (d *DataDir) file(name string) string { return filepath.Join(d.path, name) }

func (d *DataDir) takeLock() error {
	lock, err := fileutil.TryLockFile(d.file(lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fileutil.ErrLocked) {
		return fmt.Errorf("%w by %s", ErrDataDirInUse, lockHolder(d.file(lockFile)))
	}
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	d.lock = lock
	if err := lock.Truncate(0); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	if _, err := lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	return nil
}

// lockHolder names the process that wrote the lock file, for people: it may be gone or just be starting.
func lockHolder(path string) string {
	content, err := os.ReadFile(path)
	if pid, convErr := strconv.Atoi(strings.TrimSpace(string(content))); err == nil && convErr == nil {
		return fmt.Sprintf("process %d", pid)
	}
	return "another process"
}

// checkFormat stamps a new directory and refuses one it cannot read.
func (d *DataDir) checkFormat() error {
	content, err := os.ReadFile(d.file(formatFile))
	if errors.Is(err, fs.ErrNotExist) {
		found, err := d.holds(identFile, etcdDir, pebbleDir)
		if err != nil {
			return err
		}
		if found != "" {
			return fmt.Errorf("it holds %s but no file %s; it is no data directory, or was damaged", found, formatFile)
		}
		return d.writeFile(formatFile, []byte(strconv.Itoa(dataFormat)+"\n"))
	}
	if err != nil {
		return err
	}
	format, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil || format < 1 {
		return fmt.Errorf("file %s holds %q, not a number; it was damaged", formatFile, content)
	}
	if format > dataFormat {
		return fmt.Errorf("%w: %d, and this binary reads up to %d; run the version of carillon that wrote it, or a newer one",
			ErrNewerFormat, format, dataFormat)
	}
	return nil
}

func (d *DataDir) readIdent() (Ident, error) {
	content, err := os.ReadFile(d.file(identFile))
	if errors.Is(err, fs.ErrNotExist) {
		found, err := d.holds(etcdDir, pebbleDir)
		if err != nil {
			return Ident{}, err
		}
		if found != "" {
			return Ident{}, fmt.Errorf("%w: it holds %s but no file %s; restore that file, or start with an empty directory as a new store",
				ErrIdentLost, found, identFile)
		}
		return Ident{ClusterID: randomID(), StoreUUID: randomID(), CreatedMS: time.Now().UnixMilli()}, nil
	}
	if err != nil {
		return Ident{}, err
	}
	ident, err := decodeIdent(content)
	if err != nil {
		return Ident{}, fmt.Errorf("%w: file %s: %w; restore that file, or start with an empty directory as a new store",
			ErrIdentLost, identFile, err)
	}
	return ident, nil
}

// holds returns the first of names that exists and, being a directory, is not empty.
func (d *DataDir) holds(names ...string) (string, error) {
	for _, name := range names {
		entries, err := os.ReadDir(d.file(name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err == nil && len(entries) == 0:
		case err == nil || isFile(d.file(name)):
			return name, nil
		default:
			return "", err
		}
	}
	return "", nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode writes JSON on a line and its checksum on the next.
func (i Ident) encode() []byte {
	content, err := json.Marshal(i)
	if err != nil {
		panic(fmt.Sprintf("node: encode identity: %v", err)) // strings and numbers only
	}
	return fmt.Appendf(nil, "%s\n%08x\n", content, crc32.Checksum(content, castagnoli))
}

func decodeIdent(content []byte) (Ident, error) {
	line, rest, ok := bytes.Cut(content, []byte("\n"))
	if !ok {
		return Ident{}, errors.New("it is torn")
	}
	if want := fmt.Sprintf("%08x\n", crc32.Checksum(line, castagnoli)); string(rest) != want {
		return Ident{}, errors.New("its checksum does not match")
	}
	var i Ident
	if err := json.Unmarshal(line, &i); err != nil {
		return Ident{}, fmt.Errorf("decode: %w", err)
	}
	if !isID(i.ClusterID) || !isID(i.StoreUUID) || i.Boots == 0 {
		return Ident{}, errors.New("decode: cluster_id, store_uuid or boots is missing")
	}
	return i, nil
}

// randomID is 128 random bits in hexadecimal.
func randomID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // it never fails, and fills id
	return hex.EncodeToString(id[:])
}

func isID(s string) bool {
	id, err := hex.DecodeString(s)
	return err == nil && len(id) == 16
}

// writeFile replaces a file as a whole: after a crash it is the old one or the new one.
func (d *DataDir) writeFile(name string, content []byte) error {
	temporary := d.file(name + ".tmp")
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil {
		err = file.Sync()
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := os.Rename(temporary, d.file(name)); err != nil {
		return err
	}
	return syncDir(d.path)
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
