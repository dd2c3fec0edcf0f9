// logs LOG PRODUCER PROXY... writes each line of its input to a log, once; with - for PRODUCER it prints the log as it grows.
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"
	"time"

	pb "dlspark/serving/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

var proxies []string            // those that were named; an owner may be another one
var asked string                // the one whose turn it is
var failures int                // how often in a row nothing was done
var tell = &pb.RequestContext{} // what a request says besides itself: who was asked before
var options = []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithKeepaliveParams(
	keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true})}
var clients, success = map[string]pb.DistributedLogClient{}, &pb.Status{Code: pb.Status_SUCCESS}

// ask tries one proxy after the other, but the owner where one names it.
func ask(limit time.Duration, try func(context.Context, pb.DistributedLogClient) (*pb.Status, error)) {
	for failures, tell.TriedHosts = 0, nil; ; failures++ {
		if clients[asked] == nil {
			connection, err := grpc.NewClient(asked, options...)
			if clients[asked] = pb.NewDistributedLogClient(connection); err != nil {
				log.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		said, err := try(ctx, clients[asked])
		if cancel(); err == nil && said.Code == pb.Status_SUCCESS {
			return
		}
		wrong := said.GetApplied() == pb.Status_REQUEST_WRONG && said.GetCode() != pb.Status_ALREADY_CLOSED
		if wrong || said.GetReason() == pb.Status_REASON_PRODUCER_FENCED || failures == 600 {
			log.Fatalf("%v %v", said, err)
		}
		tell.TriedHosts = append(tell.TriedHosts[:failures%9], asked) // who remembers one of them as the owner looks again
		time.Sleep(min(25*time.Duration(failures+1), 100) * time.Millisecond)
		if asked = said.GetGrpcAddress(); asked == "" {
			asked = proxies[(failures+1)%len(proxies)]
		}
	}
}

func write(stream, producer string, input *bufio.Reader) {
	var begun *pb.BeginEpochResponse
	ask(5*time.Second, func(ctx context.Context, proxy pb.DistributedLogClient) (_ *pb.Status, err error) {
		begun, err = proxy.BeginEpoch(ctx, &pb.BeginEpochRequest{Stream: stream, Producer: producer, Context: tell})
		return begun.GetStatus(), err
	})
	for line, end, number := []byte(nil), error(nil), int64(0); end == nil; {
		var waiting []*pb.WriteRequest // at most five: the log knows so many again
		for ; end == nil && len(waiting) < 5 && (len(waiting) == 0 || input.Buffered() > 0); number++ {
			if line, _, end = input.ReadLine(); end == nil {
				stamp := &pb.ProducerStamp{Name: producer, Epoch: begun.Epoch, Sequence: number}
				lines := [][]byte{[]byte(string(line))}
				waiting = append(waiting, &pb.WriteRequest{Stream: stream, Payloads: lines, Stamp: stamp, Context: tell})
			}
		}
		ask(5*time.Second, func(ctx context.Context, proxy pb.DistributedLogClient) (*pb.Status, error) {
			call, err := proxy.Append(ctx)
			for n := 0; err == nil && n < len(waiting); n++ {
				err = call.Send(waiting[n])
			}
			answer := &pb.WriteResponse{Status: success}
			for n := 0; err == nil && n < len(waiting) && answer.Status.Code == pb.Status_SUCCESS; n++ {
				answer, err = call.Recv()
			}
			return answer.GetStatus(), err // After a failure all are sent again as they were: each is written once.
		})
	}
}

func main() {
	if len(os.Args) < 4 {
		log.Fatal("logs LOG PRODUCER PROXY..., or logs LOG - PROXY...")
	}
	proxies, asked = os.Args[3:], os.Args[3]
	if os.Args[2] != "-" {
		write(os.Args[1], os.Args[2], bufio.NewReaderSize(os.Stdin, 2<<20)) // a longer line is too long for a record
		return
	}
	request := &pb.ReadRequest{Stream: os.Args[1], Context: tell}
	ask(time.Hour, func(ctx context.Context, proxy pb.DistributedLogClient) (*pb.Status, error) {
		call, err := proxy.Read(ctx, request)
		for got := (*pb.ReadResponse)(nil); err == nil && !got.GetEndOfStream(); {
			if got, err = call.Recv(); got.GetStatus().GetCode() != pb.Status_SUCCESS {
				return got.GetStatus(), err
			}
			for _, record := range got.Records {
				fmt.Printf("%d:%d:%d %s\n", record.Dlsn.Segment, record.Dlsn.Entry, record.Dlsn.Slot, record.Payload)
			}
			request.Start, failures = &pb.ReadRequest_Dlsn{Dlsn: got.Next}, 0 // another proxy goes on there
		}
		return success, err
	})
}
