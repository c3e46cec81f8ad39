#include "core/sample_bank.h"

#include <algorithm>
#include <numeric>

namespace adaspark::core {

namespace {

struct Sample {
    uint32_t context;
    float time;
    ContextBasis basis;
};

constexpr int32_t kMaxSamples = kBands * kBankDepth;
constexpr int32_t kPasses = 24;      // over a full band's training samples
constexpr int32_t kMostRuns = 25;    // of all these passes
constexpr double kConverging = 0.95; // of the loss of one run less: above it, more have stopped to help
constexpr double kNearEnough = 0.25; // of the candidate's loss: a law below it is not to be bettered by more passes
constexpr double kSpanFactor = 1.5;  // of contexts, within which a few samples teach no shape
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

uint32_t SampleBank::bands() const noexcept {
    uint32_t bits = 0;
    for (int32_t b = 0; b < kBands; ++b) {
        bits |= band[b].seen > 0 ? 1U << b : 0U;
    }
    return bits;
}

SampleBank::Typical SampleBank::typical(int32_t b) const noexcept {
    const Band & held = band[b];
    const auto n = static_cast<int32_t>(std::min<uint32_t>(held.seen, kBankDepth));
    int32_t by_time[kBankDepth] = {};
    std::iota(by_time, by_time + n, 0);
    int32_t * const at = by_time + static_cast<int32_t>(kQuantile * n);
    std::nth_element(by_time, at, by_time + n, [&](int32_t i, int32_t j) { return held.time[i] < held.time[j]; });
    return {held.context[*at], held.time[*at]};
}

Refit refit(ContextLaw & law, const SampleBank & bank, int32_t & budget) noexcept {
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
    const auto run = [&] {
        for (int32_t pass = 0; pass < passes; ++pass) {
            for (int32_t i = 0; i < trained; ++i) {
                const Sample & s = train[i];
                candidate.train(s.context, s.basis, candidate.raw(s.basis), s.time);
            }
        }
    };
    run();
    // A slope steeper than those of the paper takes more of them. Not where the law has found it already.
    const double law_loss = mean_loss(law, judged, judges);
    double loss = mean_loss(candidate, train, trained);
    bool more = bands > 1 && law_loss > kNearEnough * mean_loss(candidate, judged, judges);
    for (int32_t runs = 1; more && runs < kMostRuns && budget >= 0; ++runs) {
        budget -= passes * trained;
        run();
        const double before = loss;
        loss = mean_loss(candidate, train, trained);
        more = loss < kConverging * before;
    }
    if (mean_loss(candidate, judged, judges) >= law_loss) {
        return Refit::kept;
    }
    candidate.samples = law.samples;
    law = candidate;
    return Refit::adopted;
}

} // namespace adaspark::core
