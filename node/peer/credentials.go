package peer

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// ServerName is the DNS name in every node's certificate. Where a node runs does not matter to who it is.
const ServerName = "carillon-node"

// What a TLS connection between nodes is for is settled by ALPN. HTTP ("h2", "http/1.1", or no word: etcd's peers) is what
// Mux.Cluster serves.
const (
	ProtoFrames = "carillon-frames/1"
	ProtoBulk   = "carillon-bulk/1"

	protoHTTP2 = "h2"
	protoHTTP1 = "http/1.1"
)

// Names of what is derived from the secret. They are part of the wire format, as is all of the CA's certificate: nodes of
// different builds make it out of the same secret.
const (
	purposeCAKey   = "carillon cluster CA ed25519 v1"
	purposeCAKeyID = "carillon cluster CA key id v1"
)

var (
	// Certificates of the CA and the leaves hold from 2020 on: a node whose clock is wrong must still follow its leaders,
	// and the clock guard is what deals with clocks.
	validFrom = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	caUntil   = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
)

// Names of the files WriteTLSFiles writes.
const (
	CAFile   = "ca.pem"
	CertFile = "node.pem"
	KeyFile  = "node-key.pem"
)

// Credentials are what this start of a node shows to others and checks others by. They do not change.
type Credentials struct {
	store string
	ca    *x509.Certificate
	leaf  tls.Certificate
	pool  *x509.CertPool
	// keyDER is the leaf's key in PKCS #8.
	keyDER []byte
}

// NewCredentials derives the cluster's CA from the secret and makes a new key and certificate for the store.
func NewCredentials(secret Secret, store string) (*Credentials, error) {
	c, err := newCredentials(secret, store)
	if err != nil {
		return nil, fmt.Errorf("make node certificate: %w", err)
	}
	return c, nil
}

func newCredentials(secret Secret, store string) (*Credentials, error) {
	if store == "" || len(store) > maxStoreName {
		return nil, fmt.Errorf("a store's name has 1 to %d bytes, not %d", maxStoreName, len(store))
	}
	ca, caKey, err := deriveCA(secret)
	if err != nil {
		return nil, err
	}
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{Organization: []string{"Carillon"}, CommonName: store},
		DNSNames:     []string{ServerName},
		NotBefore:    validFrom,
		NotAfter:     time.Now().AddDate(10, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, public, caKey)
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	return &Credentials{
		store: store, ca: ca, pool: pool, keyDER: keyDER,
		leaf: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
	}, nil
}

// deriveCA makes the CA, byte for byte the same on every node: ed25519 signatures are deterministic, and nothing in the
// certificate is left to chance or to the library's version.
func deriveCA(secret Secret) (*x509.Certificate, ed25519.PrivateKey, error) {
	seed, err := secret.derive(purposeCAKey, ed25519.SeedSize)
	if err != nil {
		return nil, nil, err
	}
	keyID, err := secret.derive(purposeCAKeyID, 20)
	if err != nil {
		return nil, nil, err
	}
	key := ed25519.NewKeyFromSeed(seed)
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{Organization: []string{"Carillon"}, CommonName: "carillon-cluster"},
		NotBefore:             validFrom,
		NotAfter:              caUntil,
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
		SubjectKeyId:          keyID,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	ca, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, err
	}
	return ca, key, nil
}

// Store is the store the credentials were made for.
func (c *Credentials) Store() string { return c.store }

// serverConfig is for the node's port: it offers protos in order of preference.
func (c *Credentials) serverConfig(protos ...string) *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{c.leaf},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    c.pool,
		NextProtos:   protos,
		// Connections between nodes last; a ticket would only be sent and never be used.
		SessionTicketsDisabled: true,
		// Frames come in batches: small first records cost more than they win.
		DynamicRecordSizingDisabled: true,
	}
}

func (c *Credentials) clientConfig(protos ...string) *tls.Config {
	return &tls.Config{
		MinVersion:                  tls.VersionTLS13,
		Certificates:                []tls.Certificate{c.leaf},
		RootCAs:                     c.pool,
		ServerName:                  ServerName,
		NextProtos:                  protos,
		DynamicRecordSizingDisabled: true,
	}
}

// WriteTLSFiles writes the CA's certificate, the node's and its key to dir (CAFile, CertFile, KeyFile; readable by their
// owner only), for etcd's connections to its peers, which verify the name ServerName. Each file is replaced at once. A
// start's key is of no use to the next one, so they need not survive a crash.
func (c *Credentials) WriteTLSFiles(dir string) error {
	for _, f := range []struct {
		name, kind string
		der        []byte
	}{
		{KeyFile, "PRIVATE KEY", c.keyDER},
		{CertFile, "CERTIFICATE", c.leaf.Certificate[0]},
		{CAFile, "CERTIFICATE", c.ca.Raw},
	} {
		text := pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.der})
		if err := replaceFile(filepath.Join(dir, f.name), text); err != nil {
			return fmt.Errorf("write node certificate: %w", err)
		}
	}
	return nil
}

// replaceFile writes a file that only its owner may read.
func replaceFile(path string, content []byte) error {
	const ownerOnly = 0o600
	temporary := path + ".tmp"
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, ownerOnly)
	if err != nil {
		return err
	}
	// One that was left by a crash keeps its mode when it is opened.
	err = f.Chmod(ownerOnly)
	if err == nil {
		_, err = f.Write(content)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}
