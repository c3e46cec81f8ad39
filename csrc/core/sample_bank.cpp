#include "core/sample_bank.h"

#include <algorithm>

namespace adaspark::core {

namespace {

struct Sample {
    uint32_t context;
    float time;
};

constexpr int32_t kMaxSamples = kBands * kBankDepth;
constexpr int32_t kPasses = 24;     // over a full band's training samples
constexpr double kSpanFactor = 1.5; // how far short of the trained span a bank may fall
constexpr int32_t kTrainOfBand = kBankDepth - kBankDepth / 4;

// i-th sample of a band in arrival order.
Sample arrival(const SampleBank::Band & band, int32_t i) noexcept {
    const uint32_t held = std::min<uint32_t>(band.seen, kBankDepth);
    const uint32_t slot = (band.seen - held + static_cast<uint32_t>(i)) % kBankDepth;
    return {band.context[slot], band.time[slot]};
}

double mean_loss(const ContextLaw & law, const Sample * samples, int32_t n) noexcept {
    double sum = 0.0;
    for (int32_t i = 0; i < n; ++i) {
        const double v = (samples[i].time - law.price(ContextBasis(samples[i].context))) / law.scale;
        sum += v * (kQuantile - (v < 0.0 ? 1.0 : 0.0));
    }
    return sum / n;
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

void SampleBank::rescale(double factor) noexcept {
    for (Band & b : band) {
        for (uint32_t i = 0; i < std::min<uint32_t>(b.seen, kBankDepth); ++i) {
            b.time[i] = static_cast<float>(b.time[i] * factor);
        }
    }
}

int32_t SampleBank::size() const noexcept {
    int32_t n = 0;
    for (const Band & b : band) {
        n += static_cast<int32_t>(std::min<uint32_t>(b.seen, kBankDepth));
    }
    return n;
}

bool refit(ContextLaw & law, const SampleBank & bank) noexcept {
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
    if (!law.trained() || trained <= kLawSamples || judges == 0) {
        return false;
    }
    if (held_out == 0 && high <= kSpanFactor * low) {
        return false; // one short span: no shape to learn
    }
    if (low > kSpanFactor * law.context_low || kSpanFactor * high < law.context_high) {
        return false; // the bank has forgotten contexts the law still knows
    }
    const int32_t wanted = kPasses * kTrainOfBand * bands;
    const int32_t passes = std::max(kPasses, (wanted + trained - 1) / trained);
    ContextLaw candidate;
    for (int32_t pass = 0; pass < passes; ++pass) {
        for (int32_t i = 0; i < trained; ++i) {
            candidate.train(train[i].context, train[i].time);
        }
    }
    if (mean_loss(candidate, judged, judges) >= mean_loss(law, judged, judges)) {
        return false;
    }
    candidate.samples = law.samples;
    candidate.context_low = law.context_low;
    candidate.context_high = law.context_high;
    law = candidate;
    return true;
}

} // namespace adaspark::core
