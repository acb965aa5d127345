import io.opentelemetry.api.common.Attributes;
import io.opentelemetry.api.metrics.DoubleHistogram;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanKind;
import io.opentelemetry.api.trace.StatusCode;
import io.opentelemetry.api.trace.Tracer;
import io.opentelemetry.context.Scope;
import io.opentelemetry.exporter.otlp.http.metrics.OtlpHttpMetricExporter;
import io.opentelemetry.exporter.otlp.http.trace.OtlpHttpSpanExporter;
import io.opentelemetry.exporter.otlp.metrics.OtlpGrpcMetricExporter;
import io.opentelemetry.exporter.otlp.trace.OtlpGrpcSpanExporter;
import io.opentelemetry.sdk.metrics.Aggregation;
import io.opentelemetry.sdk.metrics.InstrumentSelector;
import io.opentelemetry.sdk.metrics.SdkMeterProvider;
import io.opentelemetry.sdk.metrics.View;
import io.opentelemetry.sdk.metrics.export.AggregationTemporalitySelector;
import io.opentelemetry.sdk.metrics.export.MetricExporter;
import io.opentelemetry.sdk.metrics.export.PeriodicMetricReader;
import io.opentelemetry.sdk.resources.Resource;
import io.opentelemetry.sdk.trace.SdkTracerProvider;
import io.opentelemetry.sdk.trace.export.BatchSpanProcessor;
import io.opentelemetry.sdk.trace.export.SpanExporter;
import java.util.concurrent.TimeUnit;

/** A service that exports the spans of four requests, one of which failed, and a histogram of fifty: PROTOCOL ENDPOINT COMPRESSION. */
public class Shop {
  public static void main(String[] arguments) throws Exception {
    String endpoint = arguments[1], compression = arguments[2];
    boolean grpc = arguments[0].equals("grpc");
    AggregationTemporalitySelector delta = AggregationTemporalitySelector.deltaPreferred();
    SpanExporter spans =
        grpc
            ? OtlpGrpcSpanExporter.builder().setEndpoint(endpoint).setCompression(compression).build()
            : OtlpHttpSpanExporter.builder().setEndpoint(endpoint + "/v1/traces").setCompression(compression).build();
    MetricExporter metrics =
        grpc
            ? OtlpGrpcMetricExporter.builder()
                .setEndpoint(endpoint)
                .setCompression(compression)
                .setAggregationTemporalitySelector(delta)
                .build()
            : OtlpHttpMetricExporter.builder()
                .setEndpoint(endpoint + "/v1/metrics")
                .setCompression(compression)
                .setAggregationTemporalitySelector(delta)
                .build();
    Attributes service =
        Attributes.builder()
            .put("service.name", "shop")
            .put("service.version", "1")
            .put("service.instance.id", "java-1")
            .put("deployment.environment.name", "production")
            .build();
    Resource resource = Resource.getDefault().merge(Resource.create(service));

    SdkTracerProvider tracers =
        SdkTracerProvider.builder()
            .setResource(resource)
            .addSpanProcessor(BatchSpanProcessor.builder(spans).build())
            .build();
    Tracer tracer = tracers.get("shop");
    for (int number = 0; number < 4; number++) {
      boolean failed = number == 3;
      Span request =
          tracer
              .spanBuilder("POST /predict")
              .setSpanKind(SpanKind.SERVER)
              .setAttribute("http.request.method", "POST")
              .setAttribute("http.route", "/predict")
              .setAttribute("http.response.status_code", failed ? 500L : 200L)
              .startSpan();
      try (Scope scope = request.makeCurrent()) {
        Span model = tracer.spanBuilder("model").startSpan();
        Thread.sleep(20);
        model.end();
        if (failed) {
          request.recordException(new IllegalStateException("no model"));
          request.setStatus(StatusCode.ERROR);
        }
      }
      request.end();
    }
    tracers.shutdown().join(10, TimeUnit.SECONDS);

    String name = "inference.request.duration";
    SdkMeterProvider meters =
        SdkMeterProvider.builder()
            .setResource(resource)
            .registerMetricReader(PeriodicMetricReader.create(metrics))
            .registerView(
                InstrumentSelector.builder().setName(name).build(),
                View.builder().setAggregation(Aggregation.base2ExponentialBucketHistogram()).build())
            .build();
    DoubleHistogram durations = meters.get("shop").histogramBuilder(name).setUnit("s").build();
    Attributes route =
        Attributes.builder().put("http.route", "/predict").put("inference.stage.dominant", "forward").build();
    for (int number = 1; number <= 50; number++) {
      durations.record(number / 1000.0, route);
    }
    meters.shutdown().join(10, TimeUnit.SECONDS);
  }
}
