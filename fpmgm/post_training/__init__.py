"""Stages after training: objectives in which a teacher has a say."""
