#include "core/sample_bank.h"

#include <algorithm>
#include <limits>

namespace adaspark::core {

namespace {

struct Sample {
    uint32_t context;
    float time;
    ContextBasis basis;
};

constexpr int32_t kMaxSamples = kBands * kBankDepth;
constexpr int32_t kPasses = 24;     // over a full band's training samples
constexpr double kSpanFactor = 1.5; // of contexts, within which a few samples teach no shape
constexpr int32_t kTrainOfBand = kBankDepth - kBankDepth / 4;

// i-th sample of a band in arrival order.
Sample arrival(const SampleBank::Band & band, int32_t i) noexcept {
    const uint32_t held = std::min<uint32_t>(band.seen, kBankDepth);
    const uint32_t slot = (band.seen - held + static_cast<uint32_t>(i)) % kBankDepth;
    return {band.context[slot], band.time[slot], ContextBasis(band.context[slot])};
}

double mean_loss(const ContextLaw & law, const Sample * samples, int32_t n) noexcept {
    double sum = 0.0;
    for (int32_t i = 0; i < n; ++i) {
        const double v = (samples[i].time - law.price(samples[i].basis)) / law.scale;
        sum += v * (kQuantile - (v < 0.0 ? 1.0 : 0.0));
    }
    return sum / n;
}

// The straight line through the bands' typical samples: where the passes begin. From nothing, they do not reach the
// slope of a small model on a CPU, whose verify takes twice as long at 2,000 tokens as at 300.
void start_on_a_line(ContextLaw & law, const SampleBank & bank) noexcept {
    double n = 0.0, sum_u = 0.0, sum_t = 0.0, sum_uu = 0.0, sum_ut = 0.0;
    double least = std::numeric_limits<double>::infinity();
    for (int32_t b = 0; b < kBands; ++b) {
        if (bank.band[b].seen > 0) {
            const SampleBank::Typical s = bank.typical(b);
            const double u = s.context / kContextUnit;
            n += 1.0;
            sum_u += u;
            sum_t += s.time;
            sum_uu += u * u;
            sum_ut += u * s.time;
            least = std::min(least, s.time);
        }
    }
    double slope = std::max(0.0, (n * sum_ut - sum_u * sum_t) / (n * sum_uu - sum_u * sum_u));
    double at_zero = (sum_t - slope * sum_u) / n;
    if (at_zero < 0.0) { // steeper than a line: through the origin, and the passes bend it
        at_zero = 0.0;
        slope = sum_ut / sum_uu;
    }
    law.start(least, at_zero / least, slope / least);
}

} // namespace

void SampleBank::add(uint32_t context, double time) noexcept {
    Band & b = band[context_band(context)];
    const uint32_t slot = b.seen % kBankDepth;
    b.context[slot] = context;
    b.time[slot] = static_cast<float>(time);
    // Wrap to a multiple of the depth that is not the start, so `seen` stays a valid ring position for ever.
    b.seen = b.seen == UINT32_MAX ? 2 * kBankDepth : b.seen + 1;
}

int32_t SampleBank::size() const noexcept {
    int32_t n = 0;
    for (const Band & b : band) {
        n += static_cast<int32_t>(std::min<uint32_t>(b.seen, kBankDepth));
    }
    return n;
}

uint32_t SampleBank::bands() const noexcept {
    uint32_t bits = 0;
    for (int32_t b = 0; b < kBands; ++b) {
        bits |= band[b].seen > 0 ? 1U << b : 0U;
    }
    return bits;
}

SampleBank::Typical SampleBank::typical(int32_t b) const noexcept {
    const Band & held = band[b];
    const uint32_t n = std::min<uint32_t>(held.seen, kBankDepth);
    uint32_t slot[kBankDepth]; // by time; equal ones in the order they arrived
    for (uint32_t i = 0; i < n; ++i) {
        const uint32_t next = (held.seen - n + i) % kBankDepth;
        uint32_t at = i;
        for (; at > 0 && held.time[slot[at - 1]] > held.time[next]; --at) {
            slot[at] = slot[at - 1];
        }
        slot[at] = next;
    }
    const uint32_t typical = n > 0 ? slot[static_cast<uint32_t>(kQuantile * n)] : 0;
    return {held.context[typical], held.time[typical]};
}

Refit refit(ContextLaw & law, const SampleBank & bank) noexcept {
    if (!law.trained()) {
        return Refit::refused;
    }
    Sample train[kMaxSamples];
    Sample judged[kMaxSamples];
    int32_t trained = 0;
    int32_t judges = 0;
    int32_t held_out = 0;
    int32_t bands = 0;
    uint32_t low = UINT32_MAX;
    uint32_t high = 0;
    // The newest quarter of a band is held out; the rest is interleaved over the bands, first of each, second of each.
    for (int32_t i = 0; i < kBankDepth; ++i) {
        for (const SampleBank::Band & b : bank.band) {
            const int32_t k = static_cast<int32_t>(std::min<uint32_t>(b.seen, kBankDepth));
            if (i >= k) {
                continue;
            }
            const Sample s = arrival(b, i);
            low = std::min(low, s.context);
            high = std::max(high, s.context);
            bands += i == 0 ? 1 : 0;
            if (i >= k - k / 4) {
                judged[judges++] = s;
                ++held_out;
                continue;
            }
            train[trained++] = s;
            if (k < 4) { // too few to hold any out: judged on what it trained on
                judged[judges++] = s;
            }
        }
    }
    if (trained <= kLawSamples || judges == 0) {
        return Refit::refused;
    }
    if (held_out == 0 && high <= kSpanFactor * low) {
        return Refit::refused; // one short span: no shape to learn
    }
    const int32_t wanted = kPasses * kTrainOfBand * bands;
    const int32_t passes = std::max(kPasses, (wanted + trained - 1) / trained);
    ContextLaw candidate;
    if (bands > 1) {
        start_on_a_line(candidate, bank);
    }
    for (int32_t pass = 0; pass < passes; ++pass) {
        for (int32_t i = 0; i < trained; ++i) {
            const Sample & s = train[i];
            candidate.train(s.context, s.basis, candidate.raw(s.basis), s.time);
        }
    }
    if (!(mean_loss(candidate, judged, judges) < mean_loss(law, judged, judges))) { // nor one that is not a number
        return Refit::kept;
    }
    candidate.samples = law.samples;
    law = candidate;
    return Refit::adopted;
}

} // namespace adaspark::core
