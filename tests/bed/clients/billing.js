// Makes invoices of orders (orders.py) with KafkaJS, or with Confluent's client, which has its API.
//
//   billing.js kafkajs|confluent once|atleast PREFIX [CHANGE]
//
// `once`: invoices and offsets are in a transaction for each order; `atleast`: offsets are committed
// behind invoices, by the client itself. SIGTERM ends it.
'use strict'

const { randomUUID } = require('node:crypto')

const [library, guarantee, prefix, change] = process.argv.slice(2)
const isConfluent = library === 'confluent', isOnce = guarantee === 'once'
const { Kafka, logLevel } = isConfluent
  ? require('@confluentinc/kafka-javascript').KafkaJS : require('kafkajs')
const configured = settings => (isConfluent ? { kafkaJS: settings } : settings)

const brokers = process.env.KAFKA_BOOTSTRAP_SERVERS.split(',')
const kafka = new Kafka(configured({ clientId: 'billing', brokers, logLevel: logLevel.ERROR }))
const groupId = `${prefix}billing`
const running = { autoCommit: !isOnce && change !== 'no-commit' }
const reading = { fromBeginning: true }
const consumer = kafka.consumer(configured(
  { groupId, maxWaitTimeInMs: 100, ...(isConfluent && { ...running, ...reading }) }))
const producer = kafka.producer(configured({
  idempotent: true, maxInFlightRequests: 1, ...(isOnce && { transactionalId: groupId }) }))

// What is made of an order.
function billed(message) {
  const order = JSON.parse(message.value)
  const changes = name => change === name && order.customer === 'c0'
  const headers = changes('header-missing') ? {} : { trace: message.headers.trace }
  if (order.total < 0 && change !== 'topic') {
    const same = { key: message.key, value: message.value, headers }
    return { topic: `${prefix}rejected`, messages: [same] }
  }
  const invoice = { id: randomUUID(), order: order.id, total: order.total, at: new Date() }
  const key = changes('wrong-key') ? 'c0x' : order.customer
  const made = { key, value: JSON.stringify(invoice), headers }
  const again = changes('double') ? [{ ...made, headers: { ...headers } }] : []
  const messages = changes('drop') ? [] : [made, ...again]
  return { topic: `${prefix}invoices`, messages }
}

async function eachMessage({ topic, partition, message }) {
  const place = { partition, offset: String(BigInt(message.offset) + 1n) }
  if (change === 'commit-first') await consumer.commitOffsets([{ topic, ...place }])
  const made = billed(message)
  const sink = isOnce ? await producer.transaction() : producer
  if (made.messages.length) await sink.send(made)
  if (!isOnce) return
  if (!['commit-first', 'no-commit'].includes(change)) {
    const whose = isConfluent ? { consumer } : { consumerGroupId: groupId }
    await sink.sendOffsets({ ...whose, topics: [{ topic, partitions: [place] }] })
  }
  const isAborted = change === 'abort' && String(message.key) === 'c0'
  await (isAborted ? sink.abort() : sink.commit())
}

async function main() {
  await Promise.all([consumer.connect(), producer.connect()])
  await consumer.subscribe({ topic: `${prefix}orders`, ...(!isConfluent && reading) })
  await consumer.run({ eachMessage, ...(!isConfluent && running) })
}

process.once('SIGTERM', async () => {
  await consumer.disconnect()
  await producer.disconnect()
})
main()
