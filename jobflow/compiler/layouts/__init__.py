"""The middle: how every value lies on the ranks, and what moves where layouts change."""
