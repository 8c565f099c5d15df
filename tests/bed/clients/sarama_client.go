// Logs in with PLAIN by tokens without Kafka headers, with a SaslHandshake before them or without,
// and asks for the topics; with a topic, it produces a record to it.
//
//	sarama_client ADDRESS USER PASSWORD handshake|none [TOPIC]
package main

import (
	"fmt"
	"os"

	"github.com/IBM/sarama"
)

func main() {
	config := sarama.NewConfig()
	config.Version = sarama.V2_1_0_0
	config.ApiVersionsRequest = false // Sarama wants this with bare tokens
	config.Producer.Return.Successes = true
	config.Net.SASL.Enable = true
	config.Net.SASL.Mechanism = sarama.SASLTypePlaintext
	config.Net.SASL.User, config.Net.SASL.Password = os.Args[2], os.Args[3]
	config.Net.SASL.Handshake = os.Args[4] == "handshake"
	config.Net.SASL.Version = sarama.SASLHandshakeV0
	client, err := sarama.NewClient([]string{os.Args[1]}, config)
	stop(err)
	defer client.Close()
	_, err = client.Topics()
	stop(err)
	if len(os.Args) > 5 {
		producer, err := sarama.NewSyncProducerFromClient(client)
		stop(err)
		message := &sarama.ProducerMessage{Topic: os.Args[5], Value: sarama.StringEncoder("v")}
		_, _, err = producer.SendMessage(message)
		stop(err)
	}
	fmt.Println("done")
}

func stop(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
