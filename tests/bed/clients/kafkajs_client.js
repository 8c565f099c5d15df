// The job (see job.py) with KafkaJS. KafkaJS itself compresses with gzip only; the other kinds are
// plugged in from packages without native code.
'use strict'

const { Kafka, CompressionTypes, CompressionCodecs, ConfigResourceTypes, AclResourceTypes,
  AclOperationTypes, AclPermissionTypes, ResourcePatternTypes, logLevel } = require('kafkajs')
const lz4 = require('lz4js')
const xxh32 = require('lz4js/xxh32.js')
const zstd = require('@bokuweb/zstd-wasm')

CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async encoder => independent(Buffer.from(lz4.compress(encoder.buffer))),
  decompress: async buffer => Buffer.from(lz4.decompress(buffer)),
})
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => Buffer.from(zstd.compress(encoder.buffer)),
  decompress: async buffer => Buffer.from(zstd.decompress(buffer)),
})

// Kafka refuses frames that say their blocks depend on each other, as lz4js always does. Ours have
// one block (up to 4 MiB), so it is enough to say otherwise and to correct the header's checksum.
function independent(frame) {
  frame[4] |= 0x20
  frame[6] = (xxh32.hash(0, frame, 4, 2) >> 8) & 0xff
  return frame
}

const KINDS = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy, lz4: CompressionTypes.LZ4, zstd: CompressionTypes.ZSTD }
const KEPT = ['kept-0', 'kept-1', 'kept-2']

const records = kind => [
  { key: `key-${kind}`, value: `text in ${kind} `.repeat(40), headers: { trace: ['5f3a', ''] } },
  { key: null, value: `no key, ${kind}` },
  { key: `key-${kind}`, value: null, headers: { reason: 'gone' } },
]

const text = data => (data === null || data === undefined ? null : data.toString())

const headerList = headers => Object.entries(headers || {}).flatMap(
  ([name, values]) => [values].flat().map(each => [name, text(each)]))

async function connect(kafka) {
  const admin = kafka.admin({ retry: { retries: 1, initialRetryTime: 100 } })
  try {
    await admin.connect()
    await admin.describeCluster()
    return { saw: null }
  } catch (error) {
    return { saw: `${error.name}: ${error.message}` }
  }
}

async function create(kafka, job) {
  const admin = kafka.admin()
  await admin.connect()
  await admin.createTopics({ topics: [
    { topic: `${job.prefix}-records`, numPartitions: 2 },
    { topic: `${job.prefix}-ledger`, numPartitions: 1 }] })
  await admin.disconnect()
  return {}
}

async function produce(kafka, job) {
  const producer = kafka.producer({ allowAutoTopicCreation: true })
  await producer.connect()
  let produced = 0
  for (const kind of job.compressions) {
    const messages = records(kind)
    await producer.send({ topic: `${job.prefix}-records`, compression: KINDS[kind], messages })
    produced += messages.length
  }
  await producer.disconnect()
  return { produced }
}

// Produce for some seconds by one producer.
async function steady(kafka, job) {
  const producer = kafka.producer()
  await producer.connect()
  for (let number = 0; number < 30; number++) {
    await producer.send({ topic: `${job.prefix}-records`, messages: [{ value: `${number}` }] })
    await new Promise(resolve => setTimeout(resolve, 100))
  }
  await producer.disconnect()
  return { produced: 30 }
}

// Feed the messages of a topic to `each` until it returns true; `before` runs before the consumer
// leaves.
async function consume(consumer, topic, each, before = async () => {}) {
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error('consumed too little in 30 s')), 30000)
    consumer.run({ autoCommit: false, eachMessage: async ({ partition, message }) => {
      if (each(partition, message)) { clearTimeout(timer); resolve() }
    } }).catch(reject)
  })
  await before()
  await consumer.disconnect()
}

async function group(kafka, job) {
  const groupId = `${job.prefix}-classic`
  const topic = `${job.prefix}-records`
  const expected = job.compressions.flatMap(records).length
  const found = []
  const next = new Map()
  const consumer = kafka.consumer({ groupId, heartbeatInterval: 500, maxWaitTimeInMs: 200 })
  const each = (partition, message) => {
    found.push([text(message.key), text(message.value), headerList(message.headers)])
    next.set(partition, String(Number(message.offset) + 1))
    return found.length === expected
  }
  const commit = () => consumer.commitOffsets(
    [...next].map(([partition, offset]) => ({ topic, partition, offset })))
  await consume(consumer, topic, each, commit)
  const admin = kafka.admin()
  await admin.connect()
  const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [topic] })
  await admin.disconnect()
  const committed = partitions.reduce((sum, each) => sum + Math.max(0, Number(each.offset)), 0)
  return { records: found, committed }
}

async function transactions(kafka, job) {
  const topic = `${job.prefix}-ledger`
  const producer = kafka.producer({ transactionalId: `${job.prefix}-tx`, idempotent: true,
    maxInFlightRequests: 1 })
  await producer.connect()
  const send = (transaction, ...values) => transaction.send({ topic,
    messages: values.map(value => ({ value, partition: 0 })) })
  const first = await producer.transaction()
  await send(first, KEPT[0], KEPT[1])
  await first.commit()
  const second = await producer.transaction()
  await send(second, 'dropped')
  await second.abort()
  const third = await producer.transaction()
  await send(third, KEPT[2])
  await third.sendOffsets({ consumerGroupId: `${job.prefix}-eos`,
    topics: [{ topic, partitions: [{ partition: 0, offset: '1' }] }] })
  await third.commit()
  await producer.disconnect()
  const values = []
  const reader = kafka.consumer({ groupId: `${job.prefix}-reader`, readUncommitted: false,
    maxWaitTimeInMs: 200 })
  await consume(reader, topic, (_, message) => {
    values.push(text(message.value))
    return values.includes(KEPT[2])
  })
  return { values }
}

function adminCalls(admin, topic, groupId) {
  const entry = { resourceType: AclResourceTypes.TOPIC, resourceName: topic,
    resourcePatternType: ResourcePatternTypes.LITERAL, principal: 'User:nobody', host: '*',
    operation: AclOperationTypes.READ, permissionType: AclPermissionTypes.ALLOW }
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
  const change = { configEntries: [{ name: 'retention.ms', value: '3600000' }] }
  return {
    listTopics: () => admin.listTopics(),
    describeCluster: () => admin.describeCluster(),
    fetchTopicMetadata: () => admin.fetchTopicMetadata({ topics: [topic] }),
    createPartitions: () => admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] }),
    describeConfigs: () => admin.describeConfigs({ includeSynonyms: true, resources: [resource] }),
    alterConfigs: () => admin.alterConfigs({ resources: [{ ...resource, ...change }] }),
    fetchTopicOffsets: () => admin.fetchTopicOffsets(topic),
    offsetsByTimestamp: () => admin.fetchTopicOffsetsByTimestamp(topic, 1),
    deleteTopicRecords: () => admin.deleteTopicRecords(
      { topic, partitions: [{ partition: 0, offset: '-1' }] }),
    listGroups: () => admin.listGroups(),
    describeGroups: () => admin.describeGroups([groupId]),
    setOffsets: () => admin.setOffsets(
      { groupId, topic, partitions: [{ partition: 0, offset: '0' }] }),
    deleteGroups: () => admin.deleteGroups([groupId]),
    createAcls: () => admin.createAcls({ acl: [entry] }),
    describeAcls: () => admin.describeAcls(entry),
    deleteAcls: () => admin.deleteAcls({ filters: [entry] }),
    listReassignments: () => admin.listPartitionReassignments({}),
    deleteTopics: () => admin.deleteTopics({ topics: [topic] }),
  }
}

async function administer(kafka, job) {
  const admin = kafka.admin()
  await admin.connect()
  const calls = {}
  const table = adminCalls(admin, `${job.prefix}-records`, `${job.prefix}-classic`)
  for (const [name, call] of Object.entries(table)) {
    calls[name] = await call().then(() => 'ok', error => String(error))
  }
  await admin.disconnect()
  return { calls }
}

function withFiles(ssl) {
  if (!ssl) return undefined
  const read = name => (ssl[name] ? require('fs').readFileSync(ssl[name]) : undefined)
  const old = ssl.ciphers ? { ciphers: ssl.ciphers, maxVersion: 'TLSv1.2' } : {}
  return { ca: [read('ca')], cert: read('cert'), key: read('cert'), ...old }
}

function withToken(sasl) {
  if (!sasl || !sasl.token) return sasl
  return { mechanism: sasl.mechanism, oauthBearerProvider: async () => ({ value: sasl.token }) }
}

async function main() {
  const [bootstrap, text] = process.argv.slice(2)
  const job = JSON.parse(text)
  await zstd.init()
  const kafka = new Kafka({ clientId: 'kafkajs', brokers: bootstrap.split(','),
    reauthenticationThreshold: 500, // by default 10 s before the end; sessions here last 2 s
    connectionTimeout: 10000, // by default 1 s, which a busy machine may need for TLS
    logLevel: logLevel.ERROR, ...job.config, ssl: withFiles(job.config.ssl),
    sasl: withToken(job.config.sasl) })
  const all = { connect, create, produce, steady, group, transactions, admin: administer }
  const steps = {}
  for (const name of job.steps) {
    steps[name] = await all[name](kafka, job).catch(error => {
      console.error(error)
      return { error: String(error) }
    })
  }
  console.log(JSON.stringify({ client: `kafkajs ${require('kafkajs/package.json').version}`, steps }))
  process.exit(0)
}

process.env.KAFKAJS_NO_PARTITIONER_WARNING = '1'
main()
