// Makes invoices of orders (orders.py) with franz-go: billing_franz once|atleast PREFIX [CHANGE].
//
// once: invoices and offsets are in a transaction for each poll; atleast: offsets are committed
// behind the invoices of a poll. SIGTERM ends it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"
)

type object = map[string]any

var guarantee, prefix, change = os.Args[1], os.Args[2], strings.Join(os.Args[3:], "")

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// What is made of an order.
func billed(read *kgo.Record) []*kgo.Record {
	var order object
	must(json.Unmarshal(read.Value, &order))
	made := &kgo.Record{Topic: prefix + "invoices", Key: read.Key, Headers: read.Headers}
	if order["total"].(float64) < 0 && change != "topic" {
		made.Topic, made.Value = prefix+"rejected", read.Value
		return []*kgo.Record{made}
	}
	invoice := object{"id": uuid.NewString(), "order": order["id"], "total": order["total"]}
	invoice["at"] = time.Now().UTC()
	made.Value, _ = json.Marshal(invoice)
	switch change + string(read.Key) {
	case "dropc0":
		return nil
	case "doublec0":
		again := *made
		return []*kgo.Record{made, &again}
	case "wrong-keyc0":
		made.Key = []byte("c0x")
	case "header-missingc0":
		made.Headers = nil
	}
	return []*kgo.Record{made}
}

func produce(ctx context.Context, client *kgo.Client, read []*kgo.Record) {
	for _, each := range read {
		must(client.ProduceSync(ctx, billed(each)...).FirstErr())
	}
}

func once(ctx context.Context, options []kgo.Opt) {
	session, err := kgo.NewGroupTransactSession(append(options, kgo.RequireStableFetchOffsets(),
		kgo.TransactionalID(prefix+"billing"))...)
	must(err)
	defer session.Close()
	for isFirst := true; ; {
		read := session.PollFetches(ctx).Records()
		if ctx.Err() != nil {
			return
		} else if len(read) == 0 {
			continue
		}
		working := context.Background()
		if change == "commit-first" {
			must(session.Client().CommitRecords(working, read...))
		}
		must(session.Begin())
		produce(working, session.Client(), read)
		if change == "commit-first" || change == "no-commit" { // of offsets: what End would add
			must(session.Client().EndTransaction(working, kgo.TryCommit))
		} else { // what is aborted is read again
			_, err := session.End(working, kgo.TransactionEndTry(change != "abort" || !isFirst))
			must(err)
		}
		isFirst = false
	}
}

func atleast(ctx context.Context, options []kgo.Opt) {
	client, err := kgo.NewClient(append(options, kgo.DisableAutoCommit())...)
	must(err)
	defer client.Close()
	for {
		read := client.PollFetches(ctx).Records()
		if ctx.Err() != nil {
			return
		}
		if change == "commit-first" {
			must(client.CommitRecords(ctx, read...))
		}
		produce(context.Background(), client, read)
		if change != "commit-first" && change != "no-commit" {
			must(client.CommitRecords(context.Background(), read...))
		}
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	brokers := strings.Split(os.Getenv("KAFKA_BOOTSTRAP_SERVERS"), ",")
	options := []kgo.Opt{kgo.SeedBrokers(brokers...), kgo.ClientID("billing"),
		kgo.ConsumerGroup(prefix + "billing"), kgo.ConsumeTopics(prefix + "orders"),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())}
	map[string]func(context.Context, []kgo.Opt){"once": once, "atleast": atleast}[guarantee](ctx, options)
}
