// Makes invoices of orders (orders.py) with Sarama: billing_sarama once|atleast PREFIX [CHANGE].
//
// once: invoices and offsets are in a transaction for each order; atleast: offsets are committed
// behind invoices, by the client itself. SIGTERM ends it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/uuid"
)

var guarantee, prefix, change = os.Args[1], os.Args[2], strings.Join(os.Args[3:], "")

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// What is made of an order.
func billed(read *sarama.ConsumerMessage) []*sarama.ProducerMessage {
	var order map[string]any
	must(json.Unmarshal(read.Value, &order))
	made := &sarama.ProducerMessage{Topic: prefix + "invoices", Key: sarama.ByteEncoder(read.Key)}
	for _, each := range read.Headers {
		made.Headers = append(made.Headers, *each)
	}
	if order["total"].(float64) < 0 && change != "topic" {
		made.Topic, made.Value = prefix+"rejected", sarama.ByteEncoder(read.Value)
		return []*sarama.ProducerMessage{made}
	}
	invoice := map[string]any{"id": uuid.NewString(), "order": order["id"], "total": order["total"]}
	invoice["at"] = time.Now().UTC()
	text, _ := json.Marshal(invoice)
	made.Value = sarama.ByteEncoder(text)
	switch change + string(read.Key) {
	case "dropc0":
		return nil
	case "doublec0":
		again := *made
		return []*sarama.ProducerMessage{made, &again}
	case "wrong-keyc0":
		made.Key = sarama.StringEncoder("c0x")
	case "header-missingc0":
		made.Headers = nil
	}
	return []*sarama.ProducerMessage{made}
}

type handler struct {
	sarama.SyncProducer
	sync.Mutex // it has one transaction at a time
}

func (*handler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (each *handler) ConsumeClaim(
	session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for read := range claim.Messages() {
		if change == "commit-first" {
			session.MarkMessage(read, "")
			session.Commit()
		}
		each.Lock()
		if guarantee == "once" {
			each.inTransaction(read)
		} else if must(each.SendMessages(billed(read))); change != "no-commit" {
			session.MarkMessage(read, "")
		}
		each.Unlock()
	}
	return nil
}

func (each *handler) inTransaction(read *sarama.ConsumerMessage) {
	must(each.BeginTxn())
	must(each.SendMessages(billed(read)))
	if change != "commit-first" && change != "no-commit" {
		must(each.AddMessageToTxn(read, prefix+"billing", nil))
	}
	if change == "abort" && string(read.Key) == "c0" {
		must(each.AbortTxn())
	} else {
		must(each.CommitTxn())
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	config := sarama.NewConfig()
	config.ClientID, config.Version = "billing", sarama.V3_6_0_0
	reading, writing := &config.Consumer, &config.Producer
	reading.IsolationLevel, reading.Offsets.Initial = sarama.ReadCommitted, sarama.OffsetOldest
	reading.Offsets.AutoCommit.Enable = guarantee == "atleast"
	writing.Return.Successes, writing.RequiredAcks = true, sarama.WaitForAll
	writing.Idempotent, config.Net.MaxOpenRequests = true, 1
	if guarantee == "once" {
		writing.Transaction.ID = prefix + "billing"
	}
	brokers := strings.Split(os.Getenv("KAFKA_BOOTSTRAP_SERVERS"), ",")
	producer, err := sarama.NewSyncProducer(brokers, config)
	must(err)
	defer producer.Close()
	group, err := sarama.NewConsumerGroup(brokers, prefix+"billing", config)
	must(err)
	defer group.Close()
	for ctx.Err() == nil {
		must(group.Consume(ctx, []string{prefix + "orders"}, &handler{SyncProducer: producer}))
	}
}
