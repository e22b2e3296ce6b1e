package control

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// remoteSync is how often a node without a member learns which members there are.
	remoteSync = 30 * time.Second
	// remoteProbe and remoteProbeTimeout find out that a member is gone whose machine does not say so.
	remoteProbe        = 2 * time.Second
	remoteProbeTimeout = 2 * time.Second
)

// RemoteConfig says how a node without a member reaches the control plane.
type RemoteConfig struct {
	// Endpoints are the PeerURLs of members, one at least that is there. Required.
	Endpoints []string
	// TLS is required.
	TLS TLSFiles
	// Logger is required.
	Logger *slog.Logger
}

// Remote is the control plane's etcd for a node without a member: what the members serve beside their peers.
type Remote struct{ client *clientv3.Client }

// OpenRemote makes the client; it connects when it is first used.
func OpenRemote(cfg RemoteConfig) (*Remote, error) {
	if len(cfg.Endpoints) == 0 {
		return nil, errors.New("open remote etcd: Endpoints is empty")
	}
	for _, endpoint := range cfg.Endpoints {
		if err := checkPeerURL(endpoint); err != nil {
			return nil, fmt.Errorf("open remote etcd: Endpoints: %w", err)
		}
	}
	if cfg.Logger == nil {
		return nil, errors.New("open remote etcd: Logger is nil")
	}
	if err := cfg.TLS.validate(); err != nil {
		return nil, fmt.Errorf("open remote etcd: TLS: %w", err)
	}
	tlsConfig, err := cfg.TLS.remoteConfig()
	if err != nil {
		return nil, fmt.Errorf("open remote etcd: load TLS files: %w", err)
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: cfg.Endpoints, TLS: tlsConfig, Logger: newZapLogger(cfg.Logger), AutoSyncInterval: remoteSync,
		DialKeepAliveTime: remoteProbe, DialKeepAliveTimeout: remoteProbeTimeout,
	})
	if err != nil {
		return nil, fmt.Errorf("open remote etcd: %w", err)
	}
	return &Remote{client: client}, nil
}

// remoteConfig verifies a member's certificate itself: etcd's client wants it to name the host, whatever the configuration
// says, and ours all bear the one name.
func (f TLSFiles) remoteConfig() (*tls.Config, error) {
	c, err := f.info().ClientConfig()
	if err != nil {
		return nil, err
	}
	roots := c.RootCAs
	c.InsecureSkipVerify = true
	c.VerifyConnection = func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return errors.New("verify member: it shows no certificate")
		}
		intermediates := x509.NewCertPool()
		for _, cert := range state.PeerCertificates[1:] {
			intermediates.AddCert(cert)
		}
		_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{
			DNSName: peerServerName, Roots: roots, Intermediates: intermediates,
		})
		return err
	}
	return c, nil
}

// Members reads the membership; it takes a majority. Errors: ErrUnavailable.
func (r *Remote) Members(ctx context.Context) ([]Member, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	res, err := r.client.MemberList(ctx)
	if err != nil {
		return nil, fmt.Errorf("list members: %w", unavailable(err))
	}
	var members []Member
	for _, m := range res.Members {
		one := Member{ID: m.ID, Name: m.Name, Learner: m.IsLearner, Started: len(m.ClientURLs) > 0}
		if len(m.PeerURLs) > 0 {
			one.PeerURL = m.PeerURLs[0]
		}
		members = append(members, one)
	}
	return members, nil
}

// RemoveMember removes the member of a store, if there is one. Errors: ErrBusy, ErrUnavailable.
func (r *Remote) RemoveMember(ctx context.Context, storeUUID string) error {
	members, err := r.Members(ctx)
	if err != nil {
		return fmt.Errorf("remove member of store %s: %w", storeUUID, err)
	}
	doomed, err := membersOf(members, storeUUID)
	if err != nil {
		return err
	}
	for _, m := range doomed {
		if err := r.remove(ctx, m.ID); err != nil {
			return fmt.Errorf("remove member %s: %w", m.Name, err)
		}
	}
	return nil
}

func (r *Remote) remove(ctx context.Context, id uint64) error {
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	_, err := r.client.MemberRemove(ctx, id)
	switch {
	case err == nil, errors.Is(err, rpctypes.ErrMemberNotFound):
		return nil
	case errors.Is(err, rpctypes.ErrUnhealthy), errors.Is(err, rpctypes.ErrMemberNotEnoughStarted):
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return unavailable(err)
}

// Close ends the client. Planes over it must not be running any more.
func (r *Remote) Close() {
	// The client's only error is that it was cancelled, which is how it closes.
	_ = r.client.Close()
}
