"""The record of what an experiment ran: code, software, hardware, and how it was submitted."""
