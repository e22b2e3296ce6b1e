package codec

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func sample() *carillonv1.BatchCreateJobsRequest {
	req := &carillonv1.BatchCreateJobsRequest{}
	for range 1000 {
		req.Items = append(req.Items, &carillonv1.CreateJobRequest{Job: &carillonv1.JobSpec{
			Id: "job-123456", Queue: "mail", Payload: make([]byte, 100), Headers: map[string]string{"traceparent": "00-0af765"},
			Schedule: &carillonv1.Schedule{When: &carillonv1.Schedule_Delay{Delay: durationpb.New(time.Hour)}}, Priority: new(uint32(0)),
		}})
	}
	return req
}

func TestCodecWritesWhatTheStandardOneReads(t *testing.T) {
	for _, message := range []proto.Message{
		sample(), &carillonv1.ClaimRequest{}, &carillonv1.Queue{Name: "q", Labels: map[string]string{"a": "b"}},
		&carillonv1.ListQueuesResponse{Queues: []*carillonv1.Queue{{Name: "q"}}},
	} {
		body, err := Proto{}.MarshalAppend([]byte("before"), message)
		if err != nil {
			t.Fatal(err)
		}
		read := message.ProtoReflect().New().Interface()
		if err := proto.Unmarshal(body[len("before"):], read); err != nil || !proto.Equal(read, message) {
			t.Errorf("%T: read back as %v, %v", message, read, err)
		}
		body, err = proto.Marshal(message)
		if err != nil {
			t.Fatal(err)
		}
		read = message.ProtoReflect().New().Interface()
		if err := (Proto{}).Unmarshal(body, read); err != nil || !proto.Equal(read, message) {
			t.Errorf("%T: read as %v, %v", message, read, err)
		}
	}
	if _, err := (Proto{}).Marshal("text"); err == nil {
		t.Error("text was encoded")
	}
	if err := (Proto{}).Unmarshal(nil, "text"); err == nil {
		t.Error("text was decoded")
	}
}

// BenchmarkCodec is a batch of 1,000 creates there and back, by generated code and by reflection.
func BenchmarkCodec(b *testing.B) {
	message := sample()
	b.Run("generated", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			body, err := Proto{}.Marshal(message)
			if err == nil {
				err = Proto{}.Unmarshal(body, new(carillonv1.BatchCreateJobsRequest))
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("reflection", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			body, err := proto.Marshal(message)
			if err == nil {
				err = proto.Unmarshal(body, new(carillonv1.BatchCreateJobsRequest))
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}
