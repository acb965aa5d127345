// A program with the OpenTelemetry SDK, which exports a trace and a histogram: client.js PROTOCOL ENDPOINT METRIC.
// Prints what became of each export.
"use strict";

const [protocol, endpoint, name] = process.argv.slice(2);
const kind = { "http/json": "http", "http/protobuf": "proto", grpc: "grpc" }[protocol];
const { OTLPTraceExporter } = require(`@opentelemetry/exporter-trace-otlp-${kind}`);
const { OTLPMetricExporter } = require(`@opentelemetry/exporter-metrics-otlp-${kind}`);
const { SpanKind } = require("@opentelemetry/api");
const { resourceFromAttributes } = require("@opentelemetry/resources");
const { BatchSpanProcessor, TracerProvider } = require("@opentelemetry/sdk-trace");
const { AggregationTemporality, AggregationType, MeterProvider, PeriodicExportingMetricReader } =
  require("@opentelemetry/sdk-metrics");

function reporting(signal, exporter) {
  const send = exporter.export.bind(exporter);
  exporter.export = (items, done) =>
    send(items, (result) => {
      console.log(JSON.stringify({ signal, code: result.code, error: result.error?.message ?? "" }));
      done(result);
    });
  return exporter;
}

async function main() {
  const resource = resourceFromAttributes({ "service.name": "javascript", "service.version": "1" });
  const at = (path) => ({ url: kind === "grpc" ? endpoint : endpoint + path, compression: "gzip" });

  const exporter = reporting("traces", new OTLPTraceExporter(at("/v1/traces")));
  const tracers = new TracerProvider({ resource, spanProcessors: [new BatchSpanProcessor({ exporter })] });
  const span = tracers.getTracer("mine").startSpan("GET /", { kind: SpanKind.SERVER });
  span.end();
  await tracers.shutdown();

  const settings = { ...at("/v1/metrics"), temporalityPreference: AggregationTemporality.DELTA };
  const reader = new PeriodicExportingMetricReader({
    exporter: reporting("metrics", new OTLPMetricExporter(settings)),
    exportIntervalMillis: 3_600_000,
  });
  const views = [{ instrumentName: name, aggregation: { type: AggregationType.EXPONENTIAL_HISTOGRAM } }];
  const meters = new MeterProvider({ resource, readers: [reader], views });
  const histogram = meters.getMeter("mine").createHistogram(name, { unit: "s" });
  for (let number = 1; number <= 50; number++) {
    histogram.record(number / 1000, { "http.route": "/predict", "inference.stage.dominant": "forward" });
  }
  await meters.shutdown();
}

main();
