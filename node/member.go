package node

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/node/control"
)

// standByEvery is how often a node without a member looks whether the cluster has one too few.
const standByEvery = 10 * time.Second

// members is the way to etcd's members: through this node's own, if it has one by now.
func (n *Node) members() control.Membership {
	if etcd := n.etcd.Load(); etcd != nil {
		return etcd
	}
	return n.remote
}

// keepMember brings the member's record up to date, and makes it a voter when the cluster has its members.
func (n *Node) keepMember(ctx context.Context) error {
	etcd := n.etcd.Load()
	for {
		err := etcd.SetPeerURL(ctx)
		if err == nil {
			break
		}
		n.logger.Debug("member's address waits", "error", err)
		if pause(ctx, placementRetry) != nil {
			return nil
		}
	}
	if err := etcd.EnsureVoter(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// standBy makes this node a member when the cluster has one too few, because one was removed.
func (n *Node) standBy(ctx context.Context) error {
	for pause(ctx, standByEvery) == nil {
		members, err := n.remote.Members(ctx)
		if err != nil || len(without(members, control.MemberName(n.cfg.Name, n.dir.Ident().StoreUUID))) >= control.Voters {
			continue
		}
		n.logger.Info("the control plane has a member too few; this node becomes one", "members", len(members))
		if err := n.becomeMember(ctx, members); err != nil {
			n.logger.Warn("not a member yet", "error", err)
			continue
		}
		return n.keepMember(ctx)
	}
	return nil
}

// becomeMember starts a member in this running node. What it has of the control plane goes on through the others. A member
// that has begun and then failed goes on at the next start.
func (n *Node) becomeMember(ctx context.Context, members []control.Member) error {
	cfg := n.memberConfig()
	admitted, err := n.askToJoin(ctx, peersOf(without(members, cfg.Name)))
	switch {
	case err != nil:
		return err
	case admitted.initialCluster == "":
		return errors.New("join control plane: another node was faster")
	}
	cfg.InitialCluster = admitted.initialCluster
	etcd, err := control.OpenServer(ctx, cfg)
	if err != nil {
		return err
	}
	return n.runMember(ctx, etcd)
}

// without are all members but the one of a name: this node's own, which was admitted and has not begun.
func without(members []control.Member, name string) []control.Member {
	return slices.DeleteFunc(slices.Clone(members), func(m control.Member) bool { return m.Name == name })
}

// peersOf are the nodes of members.
func peersOf(members []control.Member) (peers []Peer) {
	for _, m := range members {
		if addr, ok := strings.CutPrefix(m.PeerURL, peerScheme); ok {
			peers = append(peers, Peer{Name: m.Name, Addr: addr})
		}
	}
	return peers
}
