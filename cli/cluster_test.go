package cli

import (
	"bytes"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// The status of a cluster that is not well: a silent node, a learner that is being filled, a clock that is off.
func TestStatusOfAClusterThatIsNotWell(t *testing.T) {
	at := timestamppb.New(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	res := &carillonv1.GetClusterResponse{
		ClusterId: "c", Time: at,
		Nodes: []*carillonv1.Node{
			{
				Name: "n1", Ready: true, ShardsLed: 2, StartTime: at, State: carillonv1.StoreState_STORE_STATE_DRAINING, Replicas: 2,
				ControlRole: carillonv1.ControlRole_CONTROL_ROLE_VOTER, Controller: true, ClockOffset: durationpb.New(0),
			},
			{
				Name: "n2", StartTime: at, State: carillonv1.StoreState_STORE_STATE_UP, ClockHeld: true,
				ControlRole: carillonv1.ControlRole_CONTROL_ROLE_LEARNER, ClockOffset: durationpb.New(-310 * time.Millisecond),
			},
			{Name: "n3", State: carillonv1.StoreState_STORE_STATE_GONE, SilentSince: at, ClockHeld: true},
		},
		Shards: []*carillonv1.Shard{
			{Id: 1, Leader: "n1", Epoch: 4, Established: true, Backlog: &carillonv1.Backlog{Jobs: 7}, Members: []*carillonv1.Replica{
				{Node: "n1", Active: true}, {Node: "n2", Learner: true, Snapshot: true, Lag: 90}, {Node: "n3", Lag: 12},
			}},
			{Id: 2, Replicas: []string{"n1", "n3"}, Backlog: &carillonv1.Backlog{Jobs: 2}},
		},
		Backlog: &carillonv1.Backlog{Jobs: 9}, UncountedShards: 1,
		Tenants: []*carillonv1.TenantLoad{{Tenant: "large", Jobs: 6, More: true}, {Tenant: "small", Jobs: 1}},
		Alarms:  []*carillonv1.Alarm{{Name: "node-silent", Node: "n1", Message: "nothing is heard of n3 for 12s", Since: at}},
	}
	var out bytes.Buffer
	p := &printer{w: &out}
	for _, rows := range [][][]string{clusterRows(res)[:6], nodeRows(res), shardRows(res), tenantRows(res), alarmRows(res)} {
		if err := p.table(rows); err != nil {
			t.Fatal(err)
		}
	}
	want := `cluster        c
time           2026-01-01T00:00:00Z
shards         1 of 2 have an established leader
control plane  1 voters, 1 learners; controller n1
replicas       3, of which 1 are learners; at most 90 entries behind
skew           7 jobs in shard 1, 2 in shard 2; tenant large has 6+ of 9 jobs (66 %); not all jobs of 1 shards were counted by tenant
NODE  STATE     ADDRESS  VERSION  READY  CLOCK  OFFSET  CONTROL  LEADS  REPLICAS  STARTED               SILENT SINCE
n1    draining  -        -        true   ok     0s      voter    2      2         2026-01-01T00:00:00Z  -
n2    up        -        -        false  held   -310ms  learner  0      0         2026-01-01T00:00:00Z  -
n3    gone      -        -        false  -      -       -        0      0         -                     2026-01-01T00:00:00Z
SHARD  LEADER  EPOCH  STATE        REPLICAS                    LAG  APPLIED  JOBS  WAITING  READY  LEASED  DEAD
1      n1      4      established  n1,n2(snapshot),n3(silent)  90   0        7     0        0      0       0
2      -       0      electing     n1,n3                       -    0        2     0        0      0       0
TENANT  JOBS
large   6+
small   1
ALARM        NODE  SHARD  SINCE                 MESSAGE
node-silent  n1    -      2026-01-01T00:00:00Z  nothing is heard of n3 for 12s
`
	if out.String() != want {
		t.Errorf("prints\n%s\nmust print\n%s", out.String(), want)
	}
}

// A server's answer about a shard that was not asked for is none of ours.
func TestAnswersAboutOtherShardsArePassedOver(t *testing.T) {
	asked := &carillonv1.LeaderTransfer{Shard: 3, From: "n1", Reason: "it was busy"}
	takeIn(map[uint32]*carillonv1.LeaderTransfer{3: asked}, []*carillonv1.LeaderTransfer{
		{Shard: 4, From: "n2", To: "n3"}, {Shard: 3, From: "n2", To: "n2", Done: true},
	})
	if asked.From != "n1" || asked.To != "n2" || !asked.Done || asked.Reason != "" {
		t.Errorf("%v", asked)
	}
}
