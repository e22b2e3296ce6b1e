package relay

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	requests        *prometheus.CounterVec
	seconds         prometheus.Histogram
	state, openings prometheus.Collector
}

func newMetrics(host string, b *breaker) *metrics {
	labels := prometheus.Labels{"host": host}
	return &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carillon_relay_requests_total", ConstLabels: labels,
			Help: "Requests by the answer's status; none: there was no answer; not_sent: there was no connection.",
		}, []string{"status"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "carillon_relay_request_seconds", ConstLabels: labels, Help: "From a request's begin to the end of its answer.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}),
		state: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "carillon_relay_breaker_state", ConstLabels: labels, Help: "0: closed, requests go; 1: half-open, one goes to see; 2: open, none goes.",
		}, func() float64 { return float64(b.states.State()) }),
		openings: prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "carillon_relay_breaker_opened_total", ConstLabels: labels, Help: "How often the breaker has opened.",
		}, b.opens),
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.seconds, m.state, m.openings}
}

func (m *metrics) answered(a answer, took time.Duration) {
	status := "none"
	switch {
	case a.status != 0:
		status = strconv.Itoa(a.status)
	case !a.sent:
		status = "not_sent"
	}
	m.requests.WithLabelValues(status).Inc()
	m.seconds.Observe(took.Seconds())
}
